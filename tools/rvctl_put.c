#include "tools/rvctl_cmd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dataplane/base/units.h"
#include "tools/rvctl_progress.h"

/* Below this a copy into memory that all share is cheaper than memory of our own. */
#define OWN_MEMORY_MIN RV_MIB(1)

/* Where peers reach this node. */

static bool is_wildcard(const char *host)
{
	return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static bool usable(const struct ifaddrs *i, int family)
{
	if (!i->ifa_addr || i->ifa_addr->sa_family != family)
		return false;
	if (!(i->ifa_flags & IFF_UP) || i->ifa_flags & IFF_LOOPBACK)
		return false;
	return family == AF_INET ||
	       !IN6_IS_ADDR_LINKLOCAL(
		       &((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr);
}

/* A listener on every address is reached at the first one that is not the loopback. */
static void first_address(int family, char host[RV_HOST_MAX])
{
	struct ifaddrs *list = NULL;

	snprintf(host, RV_HOST_MAX, "%s", family == AF_INET ? "127.0.0.1" : "::1");
	if (getifaddrs(&list))
		return;
	for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
		const void *sa = i->ifa_addr;

		if (!usable(i, family))
			continue;
		inet_ntop(family,
			  family == AF_INET
				  ? (const void *)&((const struct sockaddr_in *)sa)->sin_addr
				  : (const void *)&((const struct sockaddr_in6 *)sa)->sin6_addr,
			  host, RV_HOST_MAX);
		break;
	}
	freeifaddrs(list);
}

/* Without a listener the bare handle is all there is. */
static void locate(const char *json, size_t len, struct rv_ref *ref)
{
	struct rv_json *doc = NULL;
	const char *at;
	size_t n;

	if (rv_json_parse(json, len, &doc, NULL))
		return;
	at = rv_json_text(rv_json_at(rv_json_get(doc, "tcp"), 0), &n);
	if (!at || rv_host_parse(at, ref->host, &ref->port)) {
		ref->host[0] = '\0';
		ref->port = 0;
	} else if (is_wildcard(ref->host)) {
		first_address(strchr(ref->host, ':') ? AF_INET6 : AF_INET, ref->host);
	}
	rv_json_free(doc);
}

static int make_reference(struct rv_ctl *ctl, struct rv_handle h, struct rv_ref *ref)
{
	char *json;
	size_t len;
	int rc;

	*ref = (struct rv_ref){.handle = h};
	if (ctl->name_only && !ctl->json)
		return 0;
	rc = rv_list(ctl->c, RV_TABLE_STATUS, &json, &len);
	if (rc)
		return rc;
	locate(json, len, ref);
	rv_free(json);
	return 0;
}

/* Staging. */

static const char *why_plain(enum rv_plain_why why)
{
	switch (why) {
	case RV_PLAIN_BUDGET:
		return "memory.registered_bytes_budget is used up";
	case RV_PLAIN_POOL_EXHAUSTED:
		return "no registered memory could be had";
	case RV_PLAIN_KILL_SWITCH:
		return "RDMA is switched off";
	case RV_PLAIN_NO_RDMA:
		return "this node has no RDMA";
	default:
		return "the daemon does not say why";
	}
}

static int read_exactly(int fd, uint8_t *p, uint64_t len)
{
	while (len) {
		ssize_t n = read(fd, p, rv_min_u64(len, RV_MIB(8)));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		p += n;
		len -= (uint64_t)n;
		rv_progress_add((uint64_t)n);
	}
	return 0;
}

/* Straight from the file into the memory that peers read. */
static int put_file(struct rv_ctl *ctl, int fd, uint64_t len, const struct rv_opts *o,
		    struct rv_handle *h)
{
	struct rv_buf buf;
	int rc = rv_alloc_pinned(ctl->c, len, &buf);

	if (rc)
		return rv_ctl_fail_rc(ctl, rc, NULL);
	rv_progress_begin("reading", len);
	rc = read_exactly(fd, buf.data, len);
	rv_progress_end();
	if (rc) {
		rv_buf_free(&buf);
		return rv_ctl_fail(ctl, RV_CTL_FAILED, "here: cannot read %s: %s", ctl->arg[0],
				   rc == -EIO ? "it became shorter" : strerror(-rc));
	}
	rc = rv_register_pinned(ctl->c, &buf, o, h);
	if (rc) {
		int code = rv_ctl_fail_rc(ctl, rc, NULL);

		rv_buf_free(&buf);
		return code;
	}
	return 0;
}

static int put_copy(struct rv_ctl *ctl, int fd, uint64_t *len, const struct rv_opts *o,
		    struct rv_handle *h)
{
	void *data;
	int rc;

	rv_progress_begin("reading", 0);
	rc = rv_ctl_read_fd(fd, &data, len);
	rv_progress_end();
	if (rc)
		return rv_ctl_fail(ctl, RV_CTL_FAILED, "here: cannot read %s: %s", ctl->arg[0],
				   strerror(-rc));
	if (ctl->plain)
		rc = rv_register_data(ctl->c, data, *len, o, h);
	else
		rc = rv_register_data_pinned(ctl->c, data, *len, o, h);
	free(data);
	return rc ? rv_ctl_fail_rc(ctl, rc, NULL) : 0;
}

/* A sealed memfd with the file in it. @return 0 or a negative errno */
static int copy_to_memfd(int from, int to, uint64_t *len)
{
	for (;;) {
		ssize_t n = sendfile(to, from, NULL, RV_MIB(8));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		*len += (uint64_t)n;
		rv_progress_add((uint64_t)n);
	}
	return fcntl(to, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ? -errno : 0;
}

/* A pipe cannot be sent from: it is read first. */
static int fill_memfd(struct rv_ctl *ctl, int from, int to, uint64_t *len)
{
	int rc = copy_to_memfd(from, to, len);
	uint64_t done = 0;
	void *data;

	if (rc != -EINVAL || *len)
		return rc;
	rc = rv_ctl_read_fd(from, &data, len);
	while (!rc && done < *len) {
		ssize_t n = write(to, (uint8_t *)data + done, *len - done);

		rc = n < 0 && errno != EINTR ? -errno : 0;
		done += n > 0 ? (uint64_t)n : 0;
	}
	free(data);
	if (!rc && fcntl(to, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		rc = -errno;
	(void)ctl;
	return rc;
}

/* The daemon keeps the memory, and so the file's pages, until the slot is over. */
static int put_region(struct rv_ctl *ctl, int fd, uint64_t *len, struct rv_opts o,
		      struct rv_handle *h)
{
	struct rv_region *region;
	int rc, memfd = memfd_create("rvctl-put", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (memfd < 0)
		return rv_ctl_fail(ctl, RV_CTL_FAILED, "here: no memory for the file: %m");
	rv_progress_begin("reading", 0);
	rc = fill_memfd(ctl, fd, memfd, len);
	rv_progress_end();
	if (rc) {
		close(memfd);
		return rv_ctl_fail(ctl, RV_CTL_FAILED, "here: cannot read %s: %s", ctl->arg[0],
				   strerror(-rc));
	}
	if (!*len) { /* nothing to register */
		close(memfd);
		rc = rv_register_data(ctl->c, NULL, 0, &o, h);
		return rc ? rv_ctl_fail_rc(ctl, rc, NULL) : 0;
	}
	rc = rv_region_register(ctl->c, memfd, 0, *len, &region);
	if (rc) {
		close(memfd);
		return rv_ctl_fail_rc(ctl, rc, NULL);
	}
	o.keep = true;
	rc = rv_register_data_in_region(ctl->c, region, 0, *len, &o, h);
	if (!rc)
		rc = rv_region_hand_over(region);
	else
		rv_region_drop(region);
	return rc ? rv_ctl_fail_rc(ctl, rc, NULL) : 0;
}

static int put_open_file(struct rv_ctl *ctl, int fd, uint64_t *len, const struct rv_opts *o,
			 struct rv_handle *h)
{
	struct stat st;

	if (ctl->region)
		return put_region(ctl, fd, len, *o, h);
	if (fstat(fd, &st))
		return rv_ctl_fail(ctl, RV_CTL_FAILED, "here: cannot read %s: %m", ctl->arg[0]);
	if (!ctl->plain && S_ISREG(st.st_mode) && (uint64_t)st.st_size >= OWN_MEMORY_MIN) {
		*len = (uint64_t)st.st_size;
		return put_file(ctl, fd, *len, o, h);
	}
	return put_copy(ctl, fd, len, o, h);
}

static int print_json(struct rv_ctl *ctl, const struct rv_ref *ref, const char *text, uint64_t len,
		      const struct rv_how *how)
{
	struct rv_json_out o;

	rv_json_out_init(&o);
	rv_json_out_object(&o);
	rv_json_out_key(&o, "ref");
	rv_json_out_str(&o, text);
	rv_ctl_json_handle(&o, "handle", ref->handle);
	rv_json_out_key(&o, "bytes");
	rv_json_out_u64(&o, len);
	rv_json_out_key(&o, "pinned");
	rv_json_out_bool(&o, how->pinned);
	rv_json_out_object_end(&o);
	return rv_ctl_print_json(ctl, &o, false);
}

static int print(struct rv_ctl *ctl, struct rv_handle h, uint64_t len, const struct rv_how *how)
{
	char text[RV_REF_TEXT_MAX];
	struct rv_ref ref;
	int rc = make_reference(ctl, h, &ref);

	if (rc)
		return rv_ctl_fail_rc(ctl, rc, NULL);
	rv_ref_format(&ref, text, sizeof(text));
	if (ctl->json)
		return print_json(ctl, &ref, text, len, how);
	puts(text);
	return fflush(stdout) ? rv_ctl_fail(ctl, RV_CTL_FAILED, "here: cannot write: %m") : 0;
}

int rv_ctl_put(struct rv_ctl *ctl)
{
	struct rv_how how = {0};
	struct rv_opts o = {.ttl_ns = ctl->ttl_ns, .refs = ctl->refs, .how = &how};
	bool is_stdin = strcmp(ctl->arg[0], "-") == 0;
	struct rv_handle h = {0, 0};
	uint64_t len = 0;
	int fd, code;

	fd = is_stdin ? STDIN_FILENO : open(ctl->arg[0], O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return rv_ctl_fail(ctl, RV_CTL_FAILED, "here: cannot read %s: %m", ctl->arg[0]);
	code = put_open_file(ctl, fd, &len, &o, &h);
	if (!is_stdin)
		close(fd);
	if (code)
		return code;
	if (!ctl->plain && !ctl->region && !how.pinned && len)
		fprintf(stderr, "rvctl: put: in plain memory, so peers fetch it in chunks: %s\n",
			why_plain(how.plain));
	return print(ctl, h, len, &how);
}
