#include "control/client/wire_tx.h"

#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"

static const char text_closed[] = "the daemon closed the connection";
/* The kernel may be without memory for a moment, and then the daemon sleeps on: a millisecond each. */
#define BELL_TRIES 100u

static const char text_partial[] = "the daemon stopped reading in the middle of a request";

/* Frames. */

struct rv_tx_frame *rv_tx_frame_new(uint8_t op, const struct rv_local_req *rq, const void *data,
				    uint64_t len)
{
	struct rv_tx_frame *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	rv_list_init(&f->link);
	f->op = op;
	f->rq = *rq;
	f->data = data;
	f->len = len;
	return f;
}

void rv_tx_frame_free(struct rv_tx_frame *f)
{
	while (f) {
		struct rv_tx_frame *next = f->next;

		free(f->own);
		free(f);
		f = next;
	}
}

void rv_tx_init(struct rv_tx *tx, int fd, const struct rv_tx_ops *ops, void *user)
{
	pthread_condattr_t attr;

	memset(tx, 0, sizeof(*tx));
	tx->fd = fd;
	tx->ops = ops;
	tx->user = user;
	rv_list_init(&tx->queue);
	pthread_mutex_init(&tx->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&tx->turn, &attr);
	pthread_condattr_destroy(&attr);
}

static void forget_all(struct rv_tx *tx)
{
	struct rv_list *it;

	while ((it = rv_list_pop(&tx->queue)))
		rv_tx_frame_free(RV_LIST_ENTRY(it, struct rv_tx_frame, link));
	tx->nr = 0;
}

void rv_tx_fini(struct rv_tx *tx)
{
	forget_all(tx);
	pthread_cond_destroy(&tx->turn);
	pthread_mutex_destroy(&tx->lock);
}

/* Sending; all under the lock. */

/* Step over @n bytes of an iovec array. @return what is left of it */
static struct iovec *advance(struct iovec *v, struct iovec *end, size_t n)
{
	while (v < end && n >= v->iov_len)
		n -= (v++)->iov_len;
	if (v < end) {
		v->iov_base = (uint8_t *)v->iov_base + n;
		v->iov_len -= n;
	}
	return v;
}

/* The descriptor goes with the first byte. */
static void add_fd(const struct rv_tx_frame *f, struct msghdr *msg, char *control, size_t len)
{
	struct cmsghdr *cm;

	if (!f->with_fd || f->sent)
		return;
	memset(control, 0, len);
	msg->msg_control = control;
	msg->msg_controllen = CMSG_LEN(sizeof(int));
	cm = CMSG_FIRSTHDR(msg);
	*cm = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)),
			       .cmsg_level = SOL_SOCKET,
			       .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(cm), &f->fd, sizeof(f->fd));
}

/* What is empty at a request's end is left out: the daemon takes it as that. */
static size_t header_len(const struct rv_local_req *rq)
{
	return rq->host[0] || rq->name[0] ? sizeof(*rq) : offsetof(struct rv_local_req, host);
}

/*
 * The daemon has just stopped looking at the queue. Where the socket has no room it has something to read there, and
 * will look when it does.
 */
static int ring_bell(struct rv_tx *tx)
{
	const struct rv_local_preamble pre = {.op = RV_LOCAL_BELL};
	uint8_t bell[RV_LOCAL_PREAMBLE];
	ssize_t n;

	rv_local_preamble_put(bell, &pre);
	for (unsigned i = 0; i < BELL_TRIES; i++) {
		n = send(tx->fd, bell, sizeof(bell), MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n == sizeof(bell)) {
			rv_shmq_other(tx->shared);
			return 0;
		}
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n >= 0 || (errno != ENOBUFS && errno != EINTR))
			break;
		usleep(1000);
	}
	tx->ops->broken(tx->user, text_closed);
	return -ENOTCONN;
}

/* A whole frame through the queue. @return false: it goes through the socket; @rc as push() */
static bool through_queue(struct rv_tx *tx, struct rv_tx_frame *f, const struct iovec *v,
			  unsigned nr, int *rc)
{
	bool wake;

	if (!tx->shared || f->with_fd || f->sent || !rv_shmq_put(tx->shared, v, nr, &wake))
		return false;
	*rc = wake ? ring_bell(tx) : 0;
	return true;
}

/* As much of a frame as the socket takes. @return 0: all of it; -EAGAIN; -ENOTCONN: broken */
static int push(struct rv_tx *tx, struct rv_tx_frame *f)
{
	size_t rq_len = header_len(&f->rq);
	struct rv_local_preamble pre = {f->op, (uint32_t)rq_len, (uint32_t)f->len};
	uint8_t head[RV_LOCAL_PREAMBLE];
	struct iovec vec[3] = {
		{head, sizeof(head)},
		{&f->rq, rq_len},
		{(void *)(uintptr_t)f->data, f->len},
	};
	struct iovec *end = vec + (f->len ? 3 : 2), *v = advance(vec, end, f->sent);

	int rc;

	rv_local_preamble_put(head, &pre);
	if (through_queue(tx, f, v, (unsigned)(end - v), &rc))
		return rc;
	while (v < end) {
		alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
		struct msghdr msg = {.msg_iov = v, .msg_iovlen = (size_t)(end - v)};
		ssize_t n;

		add_fd(f, &msg, control, sizeof(control));
		n = sendmsg(tx->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n >= 0) {
			if (n && !f->sent && tx->shared)
				rv_shmq_other(tx->shared);
			f->sent += (size_t)n;
			v = advance(v, end, (size_t)n);
		} else if (errno == EAGAIN || errno == ENOBUFS) {
			return -EAGAIN;
		} else if (errno == EBADF && f->with_fd && !f->sent) {
			return -EBADF;
		} else if (errno != EINTR) {
			tx->ops->broken(tx->user, text_closed);
			return -ENOTCONN;
		}
	}
	return 0;
}

/* The payload goes on in a frame of its own. */
static void next_piece(struct rv_tx_frame *f)
{
	uint64_t n = rv_min_u64(f->left, RV_TX_PIECE);

	f->data += f->len;
	f->rq.off += f->len;
	f->left -= n;
	f->len = n;
	f->sent = 0;
}

/* A frame is through: what belongs behind it queues up at the end, so that others have their turn. */
static void went_out(struct rv_tx *tx, struct rv_tx_frame *f)
{
	if (f->left) {
		next_piece(f);
		rv_list_push(&tx->queue, &f->link);
		tx->nr++;
		return;
	}
	if (f->next) {
		rv_list_push(&tx->queue, &f->next->link);
		tx->nr++;
		f->next = NULL;
	}
	rv_tx_frame_free(f);
}

/* What waits, as far as there is room. @return 0: nothing waits; -EAGAIN; -ENOTCONN */
static int flush(struct rv_tx *tx)
{
	int rc = tx->ops->dead(tx->user);

	while (!rc && !rv_list_empty(&tx->queue)) {
		struct rv_tx_frame *f = RV_LIST_ENTRY(tx->queue.next, struct rv_tx_frame, link);

		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what was freed is off the list */
		rc = push(tx, f);
		if (rc)
			break;
		rv_list_del(&f->link);
		tx->nr--;
		went_out(tx, f);
	}
	if (rc && rc != -EAGAIN)
		forget_all(tx);
	return rc;
}

/* Once the lock is let go somebody must know about what waits. */
static void tell(struct rv_tx *tx)
{
	bool any = !rv_list_empty(&tx->queue);

	if (any == tx->told)
		return;
	tx->told = any;
	tx->ops->waiting(tx->user, any);
}

static int wait_turn(struct rv_tx *tx, uint64_t deadline_ns)
{
	struct timespec at = {
		.tv_sec = (time_t)(deadline_ns / RV_SEC(1)),
		.tv_nsec = (long)(deadline_ns % RV_SEC(1)),
	};

	while (tx->busy) {
		if (deadline_ns == RV_NEVER)
			pthread_cond_wait(&tx->turn, &tx->lock);
		else if (pthread_cond_timedwait(&tx->turn, &tx->lock, &at) == ETIMEDOUT && tx->busy)
			return -ETIMEDOUT;
	}
	return 0;
}

/* What waits, then @f, which may be NULL; @return as rv_tx_send() */
static int send_all(struct rv_tx *tx, struct rv_tx_frame *f, uint64_t deadline_ns)
{
	for (;;) {
		int rc = f && f->sent ? 0 : flush(tx);

		if (!rc && f)
			rc = push(tx, f);
		if (rc != -EAGAIN)
			return rc;
		tell(tx); /* of what waits as well: we may give up */
		pthread_mutex_unlock(&tx->lock);
		rc = tx->ops->wait(tx->user, deadline_ns);
		pthread_mutex_lock(&tx->lock);
		if (rc == -ETIMEDOUT && !(f && f->sent))
			return rc;
		if (rc) { /* the other end cannot know where the next frame begins */
			tx->ops->broken(tx->user, text_partial);
			return -ENOTCONN;
		}
	}
}

int rv_tx_send(struct rv_tx *tx, struct rv_tx_frame *f, uint64_t deadline_ns)
{
	int rc;

	pthread_mutex_lock(&tx->lock);
	rc = wait_turn(tx, deadline_ns);
	if (!rc) {
		tx->busy = true;
		rc = send_all(tx, f, deadline_ns);
		tx->busy = false;
		pthread_cond_signal(&tx->turn);
		flush(tx);
		tell(tx);
	}
	pthread_mutex_unlock(&tx->lock);
	return rc;
}

int rv_tx_queue(struct rv_tx *tx, struct rv_tx_frame *f, bool must)
{
	int rc;

	if (f->len > RV_TX_PIECE && f->op == RV_LOCAL_WRITE) {
		f->left = f->len - RV_TX_PIECE;
		f->len = RV_TX_PIECE;
	}
	pthread_mutex_lock(&tx->lock);
	rc = tx->ops->dead(tx->user);
	if (!rc && tx->nr >= RV_TX_WAITING && !must)
		rc = -EAGAIN;
	if (!rc) {
		rv_list_push(&tx->queue, &f->link);
		tx->nr++;
		if (!tx->busy)
			flush(tx);
		tell(tx);
	}
	pthread_mutex_unlock(&tx->lock);
	return rc;
}

void rv_tx_drain(struct rv_tx *tx, uint64_t deadline_ns)
{
	rv_tx_send(tx, NULL, deadline_ns);
}

void rv_tx_flush(struct rv_tx *tx)
{
	pthread_mutex_lock(&tx->lock);
	if (!tx->busy)
		flush(tx);
	tell(tx);
	pthread_mutex_unlock(&tx->lock);
}

/* The rest of a frame that has begun must still go out. @return 0 or -ENOMEM */
static int keep_rest(struct rv_tx_frame *f)
{
	void *own;

	f->left = 0;
	rv_tx_frame_free(f->next);
	f->next = NULL;
	if (!f->len || f->own)
		return 0;
	own = malloc(f->len);
	if (!own)
		return -ENOMEM;
	memcpy(own, f->data, f->len);
	f->data = f->own = own;
	return 0;
}

bool rv_tx_withdraw(struct rv_tx *tx, uint64_t id)
{
	struct rv_list *it, *tmp;
	bool withdrawn = false;

	pthread_mutex_lock(&tx->lock);
	RV_LIST_EACH_SAFE(it, tmp, &tx->queue)
	{
		struct rv_tx_frame *f = RV_LIST_ENTRY(it, struct rv_tx_frame, link);

		if (f->next && f->next->rq.id == id) {
			rv_tx_frame_free(f->next);
			f->next = NULL;
			withdrawn = true;
		}
		if (f->rq.id != id)
			continue;
		if (f->sent) {
			if (keep_rest(f))
				tx->ops->broken(tx->user, text_partial);
			break;
		}
		rv_list_del(&f->link);
		tx->nr--;
		rv_tx_frame_free(f);
		withdrawn = true;
	}
	tell(tx);
	pthread_mutex_unlock(&tx->lock);
	return withdrawn;
}
