#include "control/client/client_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* References and leases. */

static int simple(struct rv_client *c, uint8_t op, const struct rv_ref *ref, uint64_t lease,
		  const struct rv_opts *opts)
{
	struct rv_local_req like = {.lease_id = lease};
	struct rv_call *call;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!ref)
		return rv_client_fail(-EINVAL, "no reference");
	rc = rv_client_ask_owner(c, op, ref, &like, opts ? opts : &rv_client_no_opts, &call);
	if (!rc)
		rv_call_free(call);
	return rc;
}

int rv_metadata_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		   struct rv_meta *meta)
{
	struct rv_local_req like = {0};
	struct rv_call *call;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!ref || !meta)
		return rv_client_fail(-EINVAL, "no reference, or nowhere to put the answer");
	rc = rv_client_ask_owner(c, RV_LOCAL_METADATA, ref, &like, opts ? opts : &rv_client_no_opts,
				 &call);
	if (rc)
		return rc;
	*meta = (struct rv_meta){call->rep.len, call->rep.refcount, call->rep.pinned};
	rv_call_free(call);
	return 0;
}

int rv_metadata(struct rv_client *c, struct rv_handle handle, struct rv_meta *meta)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_metadata_at(c, &ref, NULL, meta);
}

int rv_ref_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts)
{
	return simple(c, RV_LOCAL_REF, ref, 0, opts);
}

int rv_ref(struct rv_client *c, struct rv_handle handle)
{
	struct rv_ref ref = rv_client_ref(handle);

	return simple(c, RV_LOCAL_REF, &ref, 0, NULL);
}

int rv_detach_at(struct rv_client *c, const struct rv_ref *ref, uint64_t lease,
		 const struct rv_opts *opts)
{
	rv_client_clear_error();
	if (lease == RV_NO_LEASE)
		return rv_client_fail(-EINVAL, "no lease to end");
	return simple(c, RV_LOCAL_DETACH, ref, lease, opts);
}

int rv_detach(struct rv_client *c, struct rv_handle handle, uint64_t lease)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_detach_at(c, &ref, lease, NULL);
}

int rv_release_at(struct rv_client *c, const struct rv_ref *ref, uint64_t lease,
		  const struct rv_opts *opts)
{
	return simple(c, RV_LOCAL_RELEASE, ref, lease, opts);
}

int rv_release(struct rv_client *c, struct rv_handle handle, uint64_t lease)
{
	struct rv_ref ref = rv_client_ref(handle);

	return simple(c, RV_LOCAL_RELEASE, &ref, lease, NULL);
}

int rv_drop(struct rv_client *c, struct rv_handle handle)
{
	struct rv_ref ref = rv_client_ref(handle);

	return simple(c, RV_LOCAL_DROP, &ref, 0, NULL);
}

/* Fetching. */

struct rv_local_req rv_client_get_like(const struct rv_opts *o)
{
	return (struct rv_local_req){
		.path = (uint32_t)o->path,
		.flags = o->keep ? RV_LOCAL_KEEP : 0,
	};
}

void rv_client_tell_how(const struct rv_local_rep *rep, struct rv_how *how)
{
	*how = (struct rv_how){.elapsed_ns = rep->elapsed_ns, .took = (enum rv_took)rep->path};
	snprintf(how->path, sizeof(how->path), "%s", rep->path_name);
}

int rv_client_check_got(struct rv_client *c, struct rv_call *call)
{
	if (!call->rep.len || call->arena)
		return 0;
	rv_wire_give_up(&c->wire, call);
	return rv_client_fail(-EPROTO, "the daemon did not say where the bytes are");
}

int rv_get_pinned_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		     struct rv_buf *buf, uint64_t *lease)
{
	const struct rv_opts *o = opts ? opts : &rv_client_no_opts;
	struct rv_local_req like = rv_client_get_like(o);
	struct rv_call *call;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!ref || !buf || !lease)
		return rv_client_fail(-EINVAL, "no reference, or nowhere to put view and lease");
	rc = rv_client_ask_owner(c, RV_LOCAL_GET, ref, &like, o, &call);
	if (!rc)
		rc = rv_client_check_got(c, call);
	if (rc)
		return rc;
	*buf = rv_client_buf(c, call);
	*lease = call->rep.lease_id;
	if (o->how)
		rv_client_tell_how(&call->rep, o->how);
	rv_call_free(call);
	return 0;
}

int rv_get_pinned(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts,
		  struct rv_buf *buf, uint64_t *lease)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_get_pinned_at(c, &ref, opts, buf, lease);
}

/* The caller gets nothing after all. */
static void forget_get(struct rv_client *c, const struct rv_ref *ref, struct rv_buf *buf,
		       uint64_t lease)
{
	struct rv_local_req rq = {
		.worker = ref->handle.worker,
		.local = ref->handle.local,
		.lease_id = lease,
	};

	rv_buf_free(buf);
	rv_wire_post(&c->wire, RV_LOCAL_DETACH, &rq);
}

int rv_get_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
	      void **data, uint64_t *len, uint64_t *lease)
{
	struct rv_buf buf;
	uint64_t id;
	void *copy;
	int rc;

	rv_client_clear_error();
	if (!data || !len || !lease)
		return rv_client_fail(-EINVAL, "nowhere to put data, length and lease");
	rc = rv_get_pinned_at(c, ref, opts, &buf, &id);
	if (rc)
		return rc;
	copy = malloc(buf.len ? buf.len : 1);
	if (!copy) {
		forget_get(c, ref, &buf, id);
		return rv_client_no_memory();
	}
	if (buf.len)
		memcpy(copy, buf.data, buf.len);
	*data = copy;
	*len = buf.len;
	*lease = id;
	rv_buf_free(&buf);
	return 0;
}

int rv_get(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts, void **data,
	   uint64_t *len, uint64_t *lease)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_get_at(c, &ref, opts, data, len, lease);
}

int rv_get_into_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		   void *dst, uint64_t cap, uint64_t *len, uint64_t *lease)
{
	struct rv_buf buf;
	uint64_t id;
	int rc;

	rv_client_clear_error();
	if ((!dst && cap) || !len || !lease)
		return rv_client_fail(-EINVAL, "nowhere to put data, length and lease");
	rc = rv_get_pinned_at(c, ref, opts, &buf, &id);
	if (rc)
		return rc;
	*len = buf.len;
	if (buf.len > cap) {
		forget_get(c, ref, &buf, id);
		return rv_client_fail(-ERANGE, "%" PRIu64 " bytes do not fit into %" PRIu64, *len,
				      cap);
	}
	if (buf.len)
		memcpy(dst, buf.data, buf.len);
	*lease = id;
	rv_buf_free(&buf);
	return 0;
}

int rv_get_into(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts, void *dst,
		uint64_t cap, uint64_t *len, uint64_t *lease)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_get_into_at(c, &ref, opts, dst, cap, len, lease);
}

void rv_free(void *data)
{
	free(data);
}
