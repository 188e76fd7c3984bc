#include "tools/rvctl_cmd.h"

#include <inttypes.h>
#include <stdio.h>

static struct rv_opts opts_of(const struct rv_ctl *ctl)
{
	return (struct rv_opts){.timeout_ns = ctl->timeout_ns};
}

static int stat_json(struct rv_ctl *ctl, const struct rv_meta *m)
{
	struct rv_json_out o;

	rv_json_out_init(&o);
	rv_json_out_object(&o);
	rv_ctl_json_handle(&o, "handle", ctl->ref.handle);
	rv_json_out_key(&o, "total_len");
	rv_json_out_u64(&o, m->len);
	rv_json_out_key(&o, "refcount");
	rv_json_out_u64(&o, m->refcount);
	rv_json_out_key(&o, "pinned");
	rv_json_out_bool(&o, m->pinned);
	rv_ctl_json_id(&o, "owner", ctl->ref.handle.worker);
	rv_json_out_object_end(&o);
	return rv_ctl_print_json(ctl, &o, false);
}

int rv_ctl_stat(struct rv_ctl *ctl)
{
	struct rv_opts o = opts_of(ctl);
	struct rv_meta m;
	int rc = rv_metadata_at(ctl->c, &ctl->ref, &o, &m);

	if (rc)
		return rv_ctl_fail_rc(ctl, rc, &ctl->ref);
	if (ctl->json)
		return stat_json(ctl, &m);
	printf("total_len %" PRIu64 "\nrefcount  %" PRIu64 "\npinned    %s\nowner     %" PRIu64
	       "\n",
	       m.len, m.refcount, m.pinned ? "yes" : "no", ctl->ref.handle.worker);
	return 0;
}

/* These say nothing when they succeed, but to scripts. */
static int finish(struct rv_ctl *ctl, int rc)
{
	struct rv_json_out o;

	if (rc)
		return rv_ctl_fail_rc(ctl, rc, &ctl->ref);
	if (!ctl->json)
		return 0;
	rv_json_out_init(&o);
	rv_json_out_object(&o);
	rv_ctl_json_handle(&o, "handle", ctl->ref.handle);
	rv_json_out_key(&o, "ok");
	rv_json_out_bool(&o, true);
	rv_json_out_object_end(&o);
	return rv_ctl_print_json(ctl, &o, false);
}

int rv_ctl_ref(struct rv_ctl *ctl)
{
	struct rv_opts o = opts_of(ctl);

	return finish(ctl, rv_ref_at(ctl->c, &ctl->ref, &o));
}

int rv_ctl_release(struct rv_ctl *ctl)
{
	struct rv_opts o = opts_of(ctl);

	return finish(ctl, rv_release_at(ctl->c, &ctl->ref, ctl->lease, &o));
}

int rv_ctl_detach(struct rv_ctl *ctl)
{
	struct rv_opts o = opts_of(ctl);

	return finish(ctl, rv_detach_at(ctl->c, &ctl->ref, ctl->lease, &o));
}

int rv_ctl_drop(struct rv_ctl *ctl)
{
	return finish(ctl, rv_drop(ctl->c, ctl->ref.handle));
}
