#include "tools/rvctl_cmd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dataplane/base/clock.h"
#include "tools/rvctl_progress.h"

static const char *const took_names[] = {"local", "chunked", "rdma"};
static const char *const end_names[] = {"released", "detached", "kept"};

static const char *took_name(const struct rv_how *how)
{
	return (unsigned)how->took < 3 ? took_names[how->took] : "unknown";
}

/* "ucx tcp" -> " (ucx, tcp)"; "chunked tcp" -> " (tcp)"; "local" -> "" */
static void put_details(const struct rv_how *how)
{
	char words[sizeof(how->path)], *save, *w;
	bool any = false;

	snprintf(words, sizeof(words), "%s", how->path);
	for (w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
		if (strcmp(w, took_name(how)) == 0)
			continue;
		fprintf(stderr, "%s%s", any ? ", " : " (", w);
		any = true;
	}
	if (any)
		fputc(')', stderr);
}

static double gigabytes_per_second(uint64_t len, const struct rv_how *how)
{
	return how->elapsed_ns ? (double)len / (double)how->elapsed_ns : 0;
}

static void put_summary(const struct rv_ctl *ctl, uint64_t len, uint64_t lease,
			const struct rv_how *how)
{
	fprintf(stderr, "%" PRIu64 " bytes in %.3f s, ", len, (double)how->elapsed_ns / 1e9);
	/* What is of this node is mapped, as a rule, and not moved: that has no speed. */
	if (how->elapsed_ns && how->took != RV_TOOK_LOCAL)
		fprintf(stderr, "%.2f GB/s, ", gigabytes_per_second(len, how));
	else
		fputs("- GB/s, ", stderr);
	fprintf(stderr, "path %s", took_name(how));
	put_details(how);
	fprintf(stderr, ", lease %" PRIu64 " %s\n", lease, end_names[ctl->end]);
}

static int put_json(const struct rv_ctl *ctl, uint64_t len, uint64_t lease,
		    const struct rv_how *how)
{
	struct rv_json_out o;

	rv_json_out_init(&o);
	rv_json_out_object(&o);
	rv_ctl_json_handle(&o, "handle", ctl->ref.handle);
	rv_json_out_key(&o, "bytes");
	rv_json_out_u64(&o, len);
	rv_json_out_key(&o, "seconds");
	rv_json_out_double(&o, (double)how->elapsed_ns / 1e9);
	rv_json_out_key(&o, "path");
	rv_json_out_str(&o, took_name(how));
	rv_json_out_key(&o, "path_name");
	rv_json_out_str(&o, how->path);
	rv_ctl_json_id(&o, "lease", lease);
	rv_json_out_key(&o, "lease_end");
	rv_json_out_str(&o, end_names[ctl->end]);
	rv_json_out_object_end(&o);
	return rv_ctl_print_json(ctl, &o, ctl->out && strcmp(ctl->out, "-") == 0);
}

/* Where the bytes go: -o, else stdout unless a person or JSON is there; NULL: nowhere. */
static const char *destination(const struct rv_ctl *ctl)
{
	if (ctl->out)
		return ctl->out;
	return ctl->json || isatty(STDOUT_FILENO) ? NULL : "-";
}

static int save(struct rv_ctl *ctl, const char *path, const struct rv_buf *buf)
{
	struct rv_ctl_out out;
	int rc = rv_ctl_out_open(path, &out);

	if (rc)
		return rv_ctl_fail(ctl, RV_CTL_FAILED, "here: cannot write %s: %s", path,
				   strerror(-rc));
	rv_progress_begin("writing", buf->len);
	rc = rv_ctl_out_write(&out, buf->data, buf->len);
	rv_progress_end();
	if (rc)
		rv_ctl_out_abort(&out);
	else
		rc = rv_ctl_out_commit(&out);
	return rc ? rv_ctl_fail(ctl, RV_CTL_FAILED, "here: cannot write %s: %s", path,
				strerror(-rc))
		  : 0;
}

/* A failed fetch gives no reference back. */
static int end_lease(struct rv_ctl *ctl, uint64_t lease, bool failed)
{
	struct rv_opts o = {.timeout_ns = ctl->timeout_ns};
	int rc = 0;

	if (failed || ctl->end == RV_CTL_DETACH)
		rc = rv_detach_at(ctl->c, &ctl->ref, lease, &o);
	else if (ctl->end == RV_CTL_RELEASE)
		rc = rv_release_at(ctl->c, &ctl->ref, lease, &o);
	return rc && !failed ? rv_ctl_fail_rc(ctl, rc, &ctl->ref) : 0;
}

static int report(struct rv_ctl *ctl, uint64_t len, uint64_t lease, const struct rv_how *how)
{
	const char *to = destination(ctl);
	int code = ctl->json ? put_json(ctl, len, lease, how) : 0;

	if (!ctl->json && ctl->end == RV_CTL_KEEP && (!to || strcmp(to, "-") != 0))
		printf("%" PRIu64 "\n", lease);
	fflush(stdout);
	put_summary(ctl, len, lease, how);
	return code;
}

int rv_ctl_get(struct rv_ctl *ctl)
{
	struct rv_how how = {0};
	struct rv_opts o = {
		.path = ctl->path,
		.timeout_ns = ctl->timeout_ns,
		.keep = ctl->end == RV_CTL_KEEP,
		.how = &how,
	};
	const char *to = destination(ctl);
	uint64_t began_ns = rv_clock_ns();
	struct rv_buf buf;
	uint64_t lease, len;
	int rc, code = 0;

	rv_progress_begin("fetching", 0);
	rc = rv_get_pinned_at(ctl->c, &ctl->ref, &o, &buf, &lease);
	rv_progress_end();
	if (rc)
		return rv_ctl_fail_rc(ctl, rc, &ctl->ref);
	if (!how.elapsed_ns) /* nothing had to be moved: then the asking is what took time */
		how.elapsed_ns = rv_clock_ns() - began_ns;
	len = buf.len;
	if (to)
		code = save(ctl, to, &buf);
	rv_buf_free(&buf);
	if (code) {
		end_lease(ctl, lease, true);
		return code;
	}
	code = end_lease(ctl, lease, false);
	return code ? code : report(ctl, len, lease, &how);
}
