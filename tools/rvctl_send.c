#include "tools/rvctl_cmd.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int write_result(const struct rv_ctl *ctl, const void *data, uint64_t len)
{
	struct rv_ctl_out out;
	const char *path = ctl->out ? ctl->out : "-";
	int rc = rv_ctl_out_open(path, &out);

	if (!rc) {
		rc = rv_ctl_out_write(&out, data, len);
		if (rc)
			rv_ctl_out_abort(&out);
		else
			rc = rv_ctl_out_commit(&out);
	}
	return rc ? rv_ctl_fail(ctl, RV_CTL_FAILED, "here: cannot write %s: %s", path,
				strerror(-rc))
		  : 0;
}

/* What was done, where a result would not be seen: --json, --sync, --fire. */
static int print_done(const struct rv_ctl *ctl, uint64_t sent, uint64_t got)
{
	static const char *const kinds[] = {"call", "sync", "fire"};
	struct rv_json_out o;

	if (!ctl->json)
		return 0;
	rv_json_out_init(&o);
	rv_json_out_object(&o);
	rv_json_out_key(&o, "peer");
	rv_json_out_str(&o, ctl->arg[0]);
	rv_json_out_key(&o, "handler");
	rv_json_out_str(&o, ctl->arg[1]);
	rv_json_out_key(&o, "kind");
	rv_json_out_str(&o, kinds[ctl->kind]);
	rv_json_out_key(&o, "sent_bytes");
	rv_json_out_u64(&o, sent);
	rv_json_out_key(&o, "result_bytes");
	rv_json_out_u64(&o, got);
	rv_json_out_object_end(&o);
	return rv_ctl_print_json(ctl, &o, ctl->kind == RV_CTL_CALL && !ctl->out);
}

int rv_ctl_send(struct rv_ctl *ctl)
{
	struct rv_opts opts = {.timeout_ns = ctl->timeout_ns};
	void *data = NULL, *reply = NULL;
	uint64_t len = 0, reply_len = 0;
	int rc = 0;

	if (ctl->arg_nr > 2)
		rc = rv_ctl_read_file(ctl->arg[2], &data, &len);
	if (rc)
		return rv_ctl_fail(ctl, RV_CTL_FAILED, "here: cannot read %s: %s", ctl->arg[2],
				   strerror(-rc));
	if (ctl->kind == RV_CTL_FIRE)
		rc = rv_send(ctl->c, ctl->arg[0], ctl->arg[1], data, len, &opts);
	else if (ctl->kind == RV_CTL_SYNC)
		rc = rv_sync(ctl->c, ctl->arg[0], ctl->arg[1], data, len, &opts);
	else
		rc = rv_call(ctl->c, ctl->arg[0], ctl->arg[1], data, len, &opts, &reply,
			     &reply_len);
	free(data);
	if (rc)
		return rv_ctl_fail_rc(ctl, rc, NULL);
	rc = ctl->kind == RV_CTL_CALL ? write_result(ctl, reply, reply_len) : 0;
	rv_free(reply);
	return rc ? rc : print_done(ctl, len, reply_len);
}

int rv_ctl_handlers(struct rv_ctl *ctl)
{
	struct rv_opts opts = {.timeout_ns = ctl->timeout_ns};
	const struct rv_json *names;
	struct rv_json *doc;
	const char *why;
	char *text;
	size_t len;
	int rc = rv_handlers(ctl->c, ctl->arg[0], &opts, &text, &len);

	if (rc)
		return rv_ctl_fail_rc(ctl, rc, NULL);
	if (ctl->json) {
		printf("%s\n", text);
		rv_free(text);
		return 0;
	}
	rc = rv_json_parse(text, len, &doc, &why);
	rv_free(text);
	if (rc)
		return rv_ctl_fail(ctl, RV_CTL_FAILED, "the peer's answer is no JSON: %s", why);
	names = rv_json_get(doc, "handlers");
	for (size_t i = 0; i < rv_json_nr(names); i++) {
		const char *name = rv_json_text(rv_json_at(names, i), &len);

		if (name)
			printf("%.*s\n", (int)len, name);
	}
	rv_json_free(doc);
	return 0;
}
