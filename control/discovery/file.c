/*
 * The file that nodes share, stock ones too: read when it has changed, rewritten as a whole under flock(2).
 *
 *   {"peers":[{"instance_id":"<uuid>","worker_id":N,"worker_address":[129,163,...],"address_checksum":XXH3}]}
 *
 * Stock nodes read it before they take the lock and rename theirs over it under the lock, so that one of two that come
 * at once loses its entry: ours is seen to every second.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "control/discovery/discovery.h"
#include "control/json/json.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/hash.h"
#include "dataplane/base/log.h"
#include "dataplane/base/map64.h"
#include "dataplane/base/units.h"

/* A node's entry is some two kilobytes of it; a tree of it takes far more. */
#define FILE_MAX    RV_MIB(16)
#define LOCK_NS     RV_SEC(2)
#define LEAVE_NS    RV_MS(500)
#define LOCK_NAP_NS RV_MS(10)

/* Which file was read, and when it was written. */
struct stamp {
	dev_t dev;
	ino_t ino;
	off_t size;
	struct timespec mtime;
};

struct file {
	char *path, *temporary;
	struct rv_peer_info self;
	uint64_t worker;
	const uint64_t *former;
	size_t former_nr;
	struct stamp read;
	bool was_read;
	struct rv_map64 by_worker; /* -> struct rv_peer_info */
};

static int fail(char *why, int rc, const struct file *f, const char *what, const char *detail)
{
	snprintf(why, RV_DISCOVERY_TEXT, "%s: %s: %s", f->path, what, detail);
	return rc;
}

static int fail_errno(char *why, const struct file *f, const char *what)
{
	int e = errno;

	return fail(why, -e, f, what, strerrordesc_np(e));
}

static struct stamp stamp_of(const struct stat *st)
{
	return (struct stamp){st->st_dev, st->st_ino, st->st_size, st->st_mtim};
}

static bool same_stamp(const struct stamp *a, const struct stamp *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
	       a->mtime.tv_sec == b->mtime.tv_sec && a->mtime.tv_nsec == b->mtime.tv_nsec;
}

/* Reading. */

static char *read_all(int fd, size_t size)
{
	char *text = malloc(size + 1);
	size_t got = 0;

	while (text && got < size) {
		ssize_t n = pread(fd, text + got, size - got, (off_t)got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			errno = n ? errno : EIO; /* it became shorter */
			free(text);
			return NULL;
		}
		got += (size_t)n;
	}
	if (text)
		text[size] = '\0';
	return text;
}

/*
 * What the open file holds.
 *
 * @param[out] doc  NULL: it is empty, as one that was just made is
 */
static int parse(const struct file *f, int fd, const struct stat *st, struct rv_json **doc,
		 char *why)
{
	const char *wrong = "";
	char *text;
	int rc;

	*doc = NULL;
	if (!S_ISREG(st->st_mode) || st->st_size > (off_t)FILE_MAX)
		return fail(why, -EPROTO, f, "no discovery file", "no file, or over 16 MiB");
	if (!st->st_size)
		return 0;
	text = read_all(fd, (size_t)st->st_size);
	if (!text)
		return fail_errno(why, f, "cannot read");
	rc = rv_json_parse(text, (size_t)st->st_size, doc, &wrong);
	free(text);
	if (!rc && rv_json_kind(rv_json_get(*doc, "peers")) != RV_JSON_ARRAY) {
		rv_json_free(*doc);
		wrong = "there is no list of peers in it";
		rc = -EPROTO;
	}
	return rc ? fail(why, rc, f, "no discovery file", wrong) : 0;
}

static void forget_all(struct file *f)
{
	struct rv_peer_info *pi;
	size_t pos = 0;

	while ((pi = rv_map64_next(&f->by_worker, &pos))) {
		rv_peer_info_fini(pi);
		free(pi);
	}
	rv_map64_fini(&f->by_worker);
	f->by_worker = (struct rv_map64){0};
}

/* @return 0; -EPROTO: what it says of itself is not true; -ENOMEM */
static int take_entry(const struct rv_json *v, struct rv_peer_info *out, uint64_t *worker)
{
	uint64_t checksum;
	int rc = rv_json_kind(v) == RV_JSON_OBJECT ? rv_peer_info_from_json(v, out, NULL) : -EPROTO;

	if (rc)
		return rc;
	if (!rv_json_uint(rv_json_get(v, "worker_id"), UINT64_MAX, worker) &&
	    *worker == rv_worker_id(out->instance) &&
	    !rv_json_uint(rv_json_get(v, "address_checksum"), UINT64_MAX, &checksum) &&
	    checksum == rv_hash_xxh3(out->address, out->address_len))
		return 0;
	rv_peer_info_fini(out);
	return -EPROTO;
}

static int note_entry(struct file *f, const struct rv_json *v)
{
	struct rv_peer_info *pi = calloc(1, sizeof(*pi));
	uint64_t worker;
	int rc = pi ? take_entry(v, pi, &worker) : -ENOMEM;

	if (rc) {
		free(pi);
		return rc;
	}
	if (!rv_map64_get(&f->by_worker, worker)) /* of two the first */
		rc = rv_map64_put(&f->by_worker, worker, pi);
	else
		rc = -EEXIST;
	if (rc) {
		rv_peer_info_fini(pi);
		free(pi);
	}
	return rc;
}

static int note_all(struct file *f, const struct rv_json *doc)
{
	const struct rv_json *peers = rv_json_get(doc, "peers");
	size_t damaged = 0;

	forget_all(f);
	for (size_t i = 0; doc && i < rv_json_nr(peers); i++) {
		int rc = note_entry(f, rv_json_at(peers, i));

		if (rc == -ENOMEM)
			return rc;
		damaged += rc == -EPROTO;
	}
	if (damaged)
		rv_log_warn("discovery: %zu entries of %s are damaged and not used", damaged,
			    f->path);
	return 0;
}

/* What is known is what the file says now. */
static int reload(struct file *f, char *why)
{
	struct rv_json *doc;
	struct stat st;
	struct stamp now;
	int fd, rc;

	if (!stat(f->path, &st)) {
		now = stamp_of(&st);
		if (f->was_read && same_stamp(&now, &f->read))
			return 0;
	}
	f->was_read = false;
	fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 && errno == ENOENT) {
		forget_all(f);
		return 0;
	}
	if (fd < 0 || fstat(fd, &st)) {
		rc = fail_errno(why, f, "cannot open");
		if (fd >= 0)
			close(fd);
		return rc;
	}
	rc = parse(f, fd, &st, &doc, why);
	close(fd);
	if (rc)
		return rc;
	rc = note_all(f, doc);
	rv_json_free(doc);
	if (rc)
		return fail(why, rc, f, "cannot read", "out of memory");
	f->read = stamp_of(&st);
	f->was_read = true;
	return 0;
}

/* Writing. */

static void nap(void)
{
	struct timespec t = {0, (long)LOCK_NAP_NS};

	nanosleep(&t, NULL);
}

/* @return 0; EWOULDBLOCK: somebody holds it, or it is at the path no more; ENOENT: nothing is; another errno */
static int lock(const struct file *f, int fd, struct stat *st)
{
	struct stat at;

	if (flock(fd, LOCK_EX | LOCK_NB) || fstat(fd, st) || stat(f->path, &at))
		return errno;
	return at.st_ino == st->st_ino && at.st_dev == st->st_dev ? 0 : EWOULDBLOCK;
}

/* The file that is at the path once it is locked: others rename theirs over it. @return its descriptor */
static int open_locked(const struct file *f, struct stat *st, uint64_t wait_ns, char *why)
{
	uint64_t deadline = rv_clock_ns() + wait_ns;
	int fd, rc;

	for (;;) {
		fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
		if (fd < 0)
			return fail_errno(why, f, "cannot open");
		rc = lock(f, fd, st);
		if (!rc)
			return fd;
		close(fd);
		if (rc != EWOULDBLOCK && rc != ENOENT && rc != EINTR)
			return fail(why, -rc, f, "cannot lock", strerrordesc_np(rc));
		if (rv_clock_ns() >= deadline)
			return fail(why, -ETIMEDOUT, f, "cannot lock", "somebody else holds it");
		nap();
	}
}

static bool is_ours(const struct file *f, const struct rv_json *v)
{
	struct rv_peer_info pi;
	uint64_t worker = 0;
	bool ours = false;

	if (!rv_json_uint(rv_json_get(v, "worker_id"), UINT64_MAX, &worker)) {
		for (size_t i = 0; i < f->former_nr && !ours; i++)
			ours = worker == f->former[i];
	}
	if (ours || worker == f->worker)
		return true;
	if (rv_peer_info_from_json(v, &pi, NULL))
		return false; /* damaged, and not ours to mend */
	ours = memcmp(pi.instance, f->self.instance, sizeof(pi.instance)) == 0;
	rv_peer_info_fini(&pi);
	return ours;
}

static void put_self(const struct file *f, FILE *out)
{
	char uuid[RV_UUID_TEXT];

	rv_uuid_format(f->self.instance, uuid);
	fprintf(out, "{ \"instance_id\": \"%s\", \"worker_id\": %" PRIu64 ", \"worker_address\": [",
		uuid, f->worker);
	for (size_t i = 0; i < f->self.address_len; i++)
		fprintf(out, "%s %u", i ? "," : "", f->self.address[i]);
	fprintf(out, " ], \"address_checksum\": %" PRIu64 " }",
		rv_hash_xxh3(f->self.address, f->self.address_len));
}

struct others {
	FILE *out;
	bool any;
};

/* Keys that we do not know stay as they are. */
static int put_other(void *user, const char *key, const struct rv_json *v)
{
	struct others *o = user;

	if (strcmp(key, "peers") != 0) {
		struct rv_json_out name;

		rv_json_out_init(&name);
		rv_json_out_str(&name, key);
		fprintf(o->out, ",\n  %s: %s", name.buf ? name.buf : "\"\"", rv_json_print(v));
		rv_json_out_fini(&name);
	}
	return 0;
}

/* The file's text with our entry, or without. @return NULL without memory */
static char *compose(const struct file *f, const struct rv_json *doc, bool with_us, size_t *len)
{
	const struct rv_json *peers = rv_json_get(doc, "peers");
	struct others o = {0};
	const char *comma = "\n    ";
	char *text = NULL;

	o.out = open_memstream(&text, len);
	if (!o.out)
		return NULL;
	fprintf(o.out, "{\n  \"peers\": [");
	for (size_t i = 0; doc && i < rv_json_nr(peers); i++) {
		const struct rv_json *v = rv_json_at(peers, i);

		if (is_ours(f, v))
			continue;
		fprintf(o.out, "%s%s", comma, rv_json_print(v));
		comma = ",\n    ";
	}
	if (with_us) {
		fputs(comma, o.out);
		put_self(f, o.out);
	}
	fprintf(o.out, "\n  ]");
	if (doc)
		rv_json_each(doc, put_other, &o);
	fprintf(o.out, "\n}\n");
	if (ferror(o.out) | fclose(o.out)) {
		free(text);
		return NULL;
	}
	return text;
}

static int write_all(int fd, const char *text, size_t len)
{
	while (len) {
		ssize_t n = write(fd, text, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		text += n;
		len -= (size_t)n;
	}
	return fsync(fd);
}

/* Under the lock: whoever reads sees the old file or the new one. What has the temporary's name is not written through. */
static int replace(const struct file *f, const char *text, size_t len, mode_t mode, char *why)
{
	int fd, rc = 0;

	unlink(f->temporary); /* of a former try */
	fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		return fail_errno(why, f, "cannot write beside it");
	if (fchmod(fd, mode & 0777) || write_all(fd, text, len) || rename(f->temporary, f->path))
		rc = fail_errno(why, f, "cannot write");
	close(fd);
	if (rc)
		unlink(f->temporary);
	return rc;
}

static int update(struct file *f, bool with_us, char *why)
{
	struct rv_json *doc = NULL;
	struct stat st = {0};
	size_t len = 0;
	char *text;
	int fd = open_locked(f, &st, with_us ? LOCK_NS : LEAVE_NS, why), rc;

	if (fd < 0)
		return fd;
	rc = parse(f, fd, &st, &doc, why);
	if (!rc) {
		text = compose(f, doc, with_us, &len);
		rc = text ? replace(f, text, len, st.st_mode, why)
			  : fail(why, -ENOMEM, f, "cannot write", "out of memory");
		free(text);
		rv_json_free(doc);
	}
	close(fd);
	return rc;
}

/* A backend. */

static int publish(void *self, char why[RV_DISCOVERY_TEXT])
{
	struct file *f = self;
	const struct rv_peer_info *pi;
	int rc = reload(f, why);

	if (rc)
		return rc;
	pi = rv_map64_get(&f->by_worker, f->worker);
	if (pi && pi->address_len == f->self.address_len &&
	    memcmp(pi->address, f->self.address, pi->address_len) == 0)
		return 0;
	rc = update(f, true, why);
	return rc ? rc : reload(f, why);
}

static void withdraw(void *self)
{
	struct file *f = self;
	char why[RV_DISCOVERY_TEXT];

	if (update(f, false, why))
		rv_log_warn("discovery: this node's entry stays: %s", why);
}

static int find(void *self, uint64_t worker, struct rv_peer_info *out, char why[RV_DISCOVERY_TEXT])
{
	struct file *f = self;
	const struct rv_peer_info *pi;
	int rc = reload(f, why);

	if (rc)
		return rc == -ENOMEM ? rc : -EHOSTUNREACH;
	pi = rv_map64_get(&f->by_worker, worker);
	if (!pi)
		return -ENOENT;
	return rv_peer_info_init(out, pi->instance, pi->address, pi->address_len);
}

static void close_file(void *self)
{
	struct file *f = self;

	forget_all(f);
	rv_peer_info_fini(&f->self);
	free(f->path);
	free(f->temporary);
	free(f);
}

const struct rv_discovery_ops rv_discovery_file_ops = {
	.publish = publish,
	.withdraw = withdraw,
	.find = find,
	.close = close_file,
	.period_ns = RV_SEC(1),
};

void *rv_discovery_file_open(const struct rv_discovery_conf *conf, char why[RV_DISCOVERY_TEXT])
{
	struct file *f = calloc(1, sizeof(*f));
	char uuid[RV_UUID_TEXT];

	snprintf(why, RV_DISCOVERY_TEXT, "out of memory");
	if (!f)
		return NULL;
	rv_uuid_format(conf->self.instance, uuid);
	f->path = strdup(conf->path);
	if (asprintf(&f->temporary, "%s.tmp.%s", conf->path, uuid) < 0)
		f->temporary = NULL;
	f->worker = rv_worker_id(conf->self.instance);
	f->former = conf->former;
	f->former_nr = conf->former_nr;
	if (!f->path || !f->temporary ||
	    rv_peer_info_init(&f->self, conf->self.instance, conf->self.address,
			      conf->self.address_len)) {
		close_file(f);
		return NULL;
	}
	return f;
}
