#include "tools/rvctl_cmd.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int save(struct rv_ctl *ctl, const void *info, size_t len)
{
	const char *path = ctl->out ? ctl->out : "-";
	struct rv_ctl_out out;
	int rc = rv_ctl_out_open(path, &out);

	if (!rc) {
		rc = rv_ctl_out_write(&out, info, len);
		if (!rc && !ctl->msgpack)
			rc = rv_ctl_out_write(&out, "\n", 1);
		if (rc)
			rv_ctl_out_abort(&out);
		else
			rc = rv_ctl_out_commit(&out);
	}
	return rc ? rv_ctl_fail(ctl, RV_CTL_FAILED, "here: cannot write %s: %s", path,
				strerror(-rc))
		  : 0;
}

int rv_ctl_peer_info(struct rv_ctl *ctl)
{
	void *info;
	size_t len;
	int rc;

	if (ctl->msgpack && !ctl->out && isatty(STDOUT_FILENO))
		return rv_ctl_fail(ctl, RV_CTL_USAGE, "msgpack is not for a terminal: use -o FILE");
	rc = rv_peer_info(ctl->c, ctl->msgpack, &info, &len);
	if (rc)
		return rv_ctl_fail_rc(ctl, rc, NULL);
	rc = save(ctl, info, len);
	rv_free(info);
	return rc;
}

static int add_file(struct rv_ctl *ctl, const char *path, uint64_t *worker)
{
	void *info;
	uint64_t len;
	int rc = rv_ctl_read_file(path, &info, &len);

	if (rc)
		return rv_ctl_fail(ctl, RV_CTL_FAILED, "here: cannot read %s: %s", path,
				   strerror(-rc));
	rc = rv_peer_add(ctl->c, ctl->arg[0], info, len, worker);
	free(info);
	return rc ? rv_ctl_fail_rc(ctl, rc, NULL) : 0;
}

static int add_address(struct rv_ctl *ctl, const char *host, uint16_t port, uint64_t *worker)
{
	int rc = rv_peer_add_at(ctl->c, ctl->arg[0], host, port, worker);

	return rc ? rv_ctl_fail_rc(ctl, rc, NULL) : 0;
}

static int print(struct rv_ctl *ctl, uint64_t worker)
{
	struct rv_json_out o;

	if (!ctl->json) {
		printf("%s %" PRIu64 "\n", ctl->arg[0], worker);
		return 0;
	}
	rv_json_out_init(&o);
	rv_json_out_object(&o);
	rv_json_out_key(&o, "name");
	rv_json_out_str(&o, ctl->arg[0]);
	rv_ctl_json_id(&o, "worker", worker);
	rv_json_out_object_end(&o);
	return rv_ctl_print_json(ctl, &o, false);
}

int rv_ctl_peer_add(struct rv_ctl *ctl)
{
	const char *what = ctl->arg[1];
	bool is_file = strcmp(what, "-") == 0 || access(what, F_OK) == 0;
	char host[RV_HOST_MAX];
	uint16_t port;
	uint64_t worker = 0;
	int code;

	if (!is_file && rv_host_parse(what, host, &port) == 0)
		code = add_address(ctl, host, port, &worker);
	else
		code = add_file(ctl, what, &worker);
	return code ? code : print(ctl, worker);
}
