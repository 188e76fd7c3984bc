/* What a daemon says to a program, whole, in pieces and wrong. */
#include "control/client/wire_rx.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "dataplane/base/units.h"

#define GET   (RV_LOCAL_REPLY | RV_LOCAL_GET)
#define REP   sizeof(struct rv_local_rep)
#define WHOLE (RV_LOCAL_PREAMBLE + REP)

static struct {
	struct rv_rx rx;
	int mine, theirs;
	unsigned frames, fds;
	size_t payload_len;
	char payload[8];
	int rc; /* what on_reply answers */
} f;

static int on_reply(void *user, struct rv_rx_frame *in)
{
	(void)user;
	f.frames++;
	f.fds += in->fd >= 0;
	f.payload_len = in->payload_len;
	if (in->payload && in->payload_len < sizeof(f.payload))
		memcpy(f.payload, in->payload, in->payload_len + 1);
	return f.rc;
}

static int begin(void **state)
{
	int fd[2];

	(void)state;
	memset(&f, 0, sizeof(f));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	f.mine = fd[0];
	f.theirs = fd[1];
	return 0;
}

static int end(void **state)
{
	(void)state;
	rv_rx_fini(&f.rx);
	close(f.mine);
	close(f.theirs);
	return 0;
}

static int receive(void)
{
	return rv_rx_read(&f.rx, f.mine, MSG_DONTWAIT, on_reply, NULL);
}

static size_t frame(uint8_t *out, uint8_t op, const struct rv_local_rep *rep, const char *payload)
{
	size_t len = strlen(payload);

	rv_local_preamble_put(out, &(struct rv_local_preamble){op, REP, (uint32_t)len});
	memcpy(out + RV_LOCAL_PREAMBLE, rep, REP);
	memcpy(out + WHOLE, payload, len);
	return WHOLE + len;
}

/* @param nr  descriptors that go along */
static void say(const void *bytes, size_t len, unsigned nr)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(64 * sizeof(int))];
	} control = {0};
	struct iovec v = {(void *)(uintptr_t)bytes, len};
	struct msghdr msg = {.msg_iov = &v, .msg_iovlen = 1};

	if (nr) {
		struct cmsghdr *c = &control.align;

		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_SPACE(nr * sizeof(int));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(nr * sizeof(int));
		for (unsigned i = 0; i < nr; i++)
			memcpy(CMSG_DATA(c) + i * sizeof(int), &f.theirs, sizeof(int));
	}
	assert_int_equal(sendmsg(f.theirs, &msg, 0), len);
}

static void a_reply_cut_anywhere_is_handed_over_once_it_is_whole(void **state)
{
	struct rv_local_rep rep = {.id = 5};
	uint8_t out[WHOLE + 8];
	size_t len = frame(out, GET, &rep, "bytes");

	for (size_t cut = 1; cut < len; cut++) {
		say(out, cut, 0);
		assert_int_equal(receive(), 0);
		assert_int_equal(f.frames, 0);
		say(out + cut, len - cut, 0);
		assert_int_equal(receive(), 0);
		assert_int_equal(f.frames, 1);
		assert_int_equal(f.payload_len, 5);
		assert_string_equal(f.payload, "bytes");
		end(state);
		begin(state);
	}
}

/* Whoever turned credentials on gets them with everything that is said. */
static void what_comes_along_and_is_no_descriptor_is_nothing(void **state)
{
	struct rv_local_rep rep = {.id = 5};
	uint8_t out[WHOLE + 8];
	int one = 1;

	(void)state;
	assert_int_equal(setsockopt(f.mine, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)), 0);
	say(out, frame(out, GET, &rep, "bytes"), 0);
	assert_int_equal(receive(), 0);
	assert_int_equal(f.frames, 1);
	assert_int_equal(f.fds, 0);
}

static void a_reply_without_its_descriptor_ends_the_stream(void **state)
{
	struct rv_local_rep rep = {.has_fd = 1};
	uint8_t out[WHOLE];

	(void)state;
	say(out, frame(out, GET, &rep, ""), 0);
	assert_int_equal(receive(), -EPROTO);
	assert_int_equal(f.frames, 0);
}

static void a_descriptor_that_nobody_takes_is_closed(void **state)
{
	struct rv_local_rep rep = {.has_fd = 1};
	uint8_t out[WHOLE];
	int next = dup(f.mine), again;

	(void)state;
	close(next);
	say(out, frame(out, GET, &rep, ""), 2); /* the second one was not announced */
	assert_int_equal(receive(), 0);
	assert_int_equal(f.frames, 1);
	assert_int_equal(f.fds, 1);
	assert_int_equal(f.rx.fd_nr, 1);
	rv_rx_fini(&f.rx);
	again = dup(f.mine);
	assert_int_equal(again, next);
	close(again);
}

static void more_descriptors_than_there_is_room_for_end_the_stream(void **state)
{
	uint8_t one = 0x4c;

	(void)state;
	say(&one, 1, RV_RX_FDS);
	assert_int_equal(receive(), 0);
	say(&one, 1, 1);
	assert_int_equal(receive(), -EPROTO);
	assert_int_equal(f.rx.fd_nr, RV_RX_FDS);
}

static void descriptors_that_the_kernel_left_out_end_the_stream(void **state)
{
	uint8_t one = 0x4c;

	(void)state;
	say(&one, 1, RV_RX_FDS + 8);
	assert_int_equal(receive(), -EMFILE);
}

static void other_control_messages_are_passed_over(void **state)
{
	struct rv_local_rep rep = {0};
	uint8_t out[WHOLE];
	int on = 1;

	(void)state;
	assert_int_equal(setsockopt(f.mine, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
	say(out, frame(out, GET, &rep, ""), 0);
	assert_int_equal(receive(), 0);
	assert_int_equal(f.frames, 1);
	assert_int_equal(f.rx.fd_nr, 0);
}

static void what_is_no_reply_ends_the_stream(void **state)
{
	static const struct rv_local_preamble heads[] = {
		{RV_LOCAL_GET, REP, 0},
		{GET, RV_LOCAL_HEADER_MAX + 1, 0},
		{GET, REP, RV_LOCAL_PAYLOAD_MAX + 1},
	};

	for (size_t i = 0; i < RV_ARRAY_NR(heads); i++) {
		uint8_t out[RV_LOCAL_PREAMBLE];

		rv_local_preamble_put(out, &heads[i]);
		say(out, sizeof(out), 0);
		assert_int_equal(receive(), -EPROTO);
		end(state);
		begin(state);
	}
	say("another protocol", 16, 0);
	assert_int_equal(receive(), -EPROTO);
}

static void a_request_of_the_daemon_is_handed_over(void **state)
{
	struct rv_local_rep rep = {0};
	uint8_t out[WHOLE];

	(void)state;
	say(out, frame(out, RV_LOCAL_REQUEST, &rep, ""), 0);
	assert_int_equal(receive(), 0);
	assert_int_equal(f.frames, 1);
}

/* As it comes out of a queue: in one piece, and without descriptors. */
static void a_frame_in_one_piece_is_handed_over_if_it_is_whole(void **state)
{
	struct rv_local_rep rep = {.id = 7};
	uint8_t out[2 * WHOLE];
	size_t len = frame(out, GET, &rep, "text");

	(void)state;
	for (size_t n = 0; n < len + 9; n++) {
		uint8_t *piece = malloc(n + 1); /* to the byte: for the address sanitizer */

		assert_non_null(piece);
		memcpy(piece, out, n);
		assert_int_equal(rv_rx_whole(piece, n, on_reply, NULL), n == len ? 0 : -EPROTO);
		free(piece);
	}
	assert_int_equal(f.frames, 1);
	assert_int_equal(f.payload_len, 4);
	assert_string_equal(f.payload, "text");
	f.rc = -ECANCELED;
	assert_int_equal(rv_rx_whole(out, len, on_reply, NULL), -ECANCELED);
	rep.has_fd = 1;
	len = frame(out, GET, &rep, "");
	assert_int_equal(rv_rx_whole(out, len, on_reply, NULL), -EPROTO);
	rep.has_fd = 0;
	len = frame(out, RV_LOCAL_GET, &rep, "");
	assert_int_equal(rv_rx_whole(out, len, on_reply, NULL), -EPROTO);
	assert_int_equal(f.frames, 2);
}

static void what_the_caller_answers_ends_the_turn(void **state)
{
	struct rv_local_rep rep = {0};
	uint8_t out[2 * WHOLE];
	size_t len = frame(out, GET, &rep, "");

	(void)state;
	f.rc = -ECANCELED;
	say(out, len + frame(out + len, GET, &rep, ""), 0);
	assert_int_equal(receive(), -ECANCELED);
	assert_int_equal(f.frames, 1);
}

static void nothing_there_and_an_end_are_told_apart(void **state)
{
	(void)state;
	assert_int_equal(receive(), 0);
	assert_true(f.rx.dry);
	shutdown(f.theirs, SHUT_WR);
	assert_int_equal(receive(), -ENOTCONN);
	assert_false(f.rx.dry);
	assert_int_equal(rv_rx_read(&f.rx, -1, MSG_DONTWAIT, on_reply, NULL), -ENOTCONN);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)
	const struct CMUnitTest tests[] = {
		T(a_reply_cut_anywhere_is_handed_over_once_it_is_whole),
		T(a_reply_without_its_descriptor_ends_the_stream),
		T(what_comes_along_and_is_no_descriptor_is_nothing),
		T(a_descriptor_that_nobody_takes_is_closed),
		T(more_descriptors_than_there_is_room_for_end_the_stream),
		T(descriptors_that_the_kernel_left_out_end_the_stream),
		T(other_control_messages_are_passed_over),
		T(what_is_no_reply_ends_the_stream),
		T(a_request_of_the_daemon_is_handed_over),
		T(a_frame_in_one_piece_is_handed_over_if_it_is_whole),
		T(what_the_caller_answers_ends_the_turn),
		T(nothing_there_and_an_end_are_told_apart),
	};

	return cmocka_run_group_tests_name("wire_rx", tests, NULL, NULL);
}
