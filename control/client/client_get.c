/*
 * What concerns a handle: each call in its forms, by handle and by reference, waiting or not.
 */
#include "control/client/client_impl.h"

#include <stdlib.h>

/* References and leases. */

static struct rv_query about(uint8_t op, const struct rv_ref *ref, uint64_t lease,
			     const struct rv_opts *opts)
{
	return (struct rv_query){op, ref, lease, opts, rv_take_nothing, {0}};
}

static struct rv_query about_meta(const struct rv_ref *ref, const struct rv_opts *opts,
				  struct rv_meta *meta)
{
	return (struct rv_query){RV_LOCAL_METADATA, ref, 0, opts, rv_take_meta, {.meta = meta}};
}

int rv_metadata_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		   struct rv_meta *meta)
{
	struct rv_query q = about_meta(ref, opts, meta);

	return rv_client_query(c, &q);
}

int rv_metadata(struct rv_client *c, struct rv_handle handle, struct rv_meta *meta)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_metadata_at(c, &ref, NULL, meta);
}

int rv_metadata_at_nb(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		      struct rv_meta *meta, rv_done_fn *done, void *user)
{
	struct rv_query q = about_meta(ref, opts, meta);

	return rv_client_query_nb(c, &q, done, user);
}

int rv_metadata_nb(struct rv_client *c, struct rv_handle handle, struct rv_meta *meta,
		   rv_done_fn *done, void *user)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_metadata_at_nb(c, &ref, NULL, meta, done, user);
}

int rv_ref_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts)
{
	struct rv_query q = about(RV_LOCAL_REF, ref, 0, opts);

	return rv_client_query(c, &q);
}

int rv_ref(struct rv_client *c, struct rv_handle handle)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_ref_at(c, &ref, NULL);
}

int rv_ref_at_nb(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		 rv_done_fn *done, void *user)
{
	struct rv_query q = about(RV_LOCAL_REF, ref, 0, opts);

	return rv_client_query_nb(c, &q, done, user);
}

int rv_ref_nb(struct rv_client *c, struct rv_handle handle, rv_done_fn *done, void *user)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_ref_at_nb(c, &ref, NULL, done, user);
}

int rv_detach_at(struct rv_client *c, const struct rv_ref *ref, uint64_t lease,
		 const struct rv_opts *opts)
{
	struct rv_query q = about(RV_LOCAL_DETACH, ref, lease, opts);

	return rv_client_query(c, &q);
}

int rv_detach(struct rv_client *c, struct rv_handle handle, uint64_t lease)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_detach_at(c, &ref, lease, NULL);
}

int rv_detach_at_nb(struct rv_client *c, const struct rv_ref *ref, uint64_t lease,
		    const struct rv_opts *opts, rv_done_fn *done, void *user)
{
	struct rv_query q = about(RV_LOCAL_DETACH, ref, lease, opts);

	return rv_client_query_nb(c, &q, done, user);
}

int rv_detach_nb(struct rv_client *c, struct rv_handle handle, uint64_t lease, rv_done_fn *done,
		 void *user)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_detach_at_nb(c, &ref, lease, NULL, done, user);
}

int rv_release_at(struct rv_client *c, const struct rv_ref *ref, uint64_t lease,
		  const struct rv_opts *opts)
{
	struct rv_query q = about(RV_LOCAL_RELEASE, ref, lease, opts);

	return rv_client_query(c, &q);
}

int rv_release(struct rv_client *c, struct rv_handle handle, uint64_t lease)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_release_at(c, &ref, lease, NULL);
}

int rv_release_at_nb(struct rv_client *c, const struct rv_ref *ref, uint64_t lease,
		     const struct rv_opts *opts, rv_done_fn *done, void *user)
{
	struct rv_query q = about(RV_LOCAL_RELEASE, ref, lease, opts);

	return rv_client_query_nb(c, &q, done, user);
}

int rv_release_nb(struct rv_client *c, struct rv_handle handle, uint64_t lease, rv_done_fn *done,
		  void *user)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_release_at_nb(c, &ref, lease, NULL, done, user);
}

int rv_drop(struct rv_client *c, struct rv_handle handle)
{
	struct rv_ref ref = rv_client_ref(handle);
	struct rv_query q = about(RV_LOCAL_DROP, &ref, 0, NULL);

	return rv_client_query(c, &q);
}

int rv_drop_nb(struct rv_client *c, struct rv_handle handle, rv_done_fn *done, void *user)
{
	struct rv_ref ref = rv_client_ref(handle);
	struct rv_query q = about(RV_LOCAL_DROP, &ref, 0, NULL);

	return rv_client_query_nb(c, &q, done, user);
}

/* Fetching. */

static struct rv_query about_view(const struct rv_ref *ref, const struct rv_opts *opts,
				  struct rv_buf *buf, uint64_t *lease)
{
	return (struct rv_query){RV_LOCAL_GET, ref,          0,
				 opts,         rv_take_view, {.buf = buf, .lease = lease}};
}

static struct rv_query about_copy(const struct rv_ref *ref, const struct rv_opts *opts, void **data,
				  uint64_t *len, uint64_t *lease)
{
	return (struct rv_query){
		RV_LOCAL_GET, ref,          0,
		opts,         rv_take_copy, {.data = data, .len = len, .lease = lease}};
}

static struct rv_query about_into(const struct rv_ref *ref, const struct rv_opts *opts, void *dst,
				  uint64_t cap, uint64_t *len, uint64_t *lease)
{
	return (struct rv_query){
		RV_LOCAL_GET, ref,          0,
		opts,         rv_take_into, {.dst = dst, .cap = cap, .len = len, .lease = lease}};
}

int rv_get_pinned_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		     struct rv_buf *buf, uint64_t *lease)
{
	struct rv_query q = about_view(ref, opts, buf, lease);

	return rv_client_query(c, &q);
}

int rv_get_pinned(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts,
		  struct rv_buf *buf, uint64_t *lease)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_get_pinned_at(c, &ref, opts, buf, lease);
}

int rv_get_pinned_at_nb(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
			struct rv_buf *buf, uint64_t *lease, rv_done_fn *done, void *user)
{
	struct rv_query q = about_view(ref, opts, buf, lease);

	return rv_client_query_nb(c, &q, done, user);
}

int rv_get_pinned_nb(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts,
		     struct rv_buf *buf, uint64_t *lease, rv_done_fn *done, void *user)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_get_pinned_at_nb(c, &ref, opts, buf, lease, done, user);
}

int rv_get_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
	      void **data, uint64_t *len, uint64_t *lease)
{
	struct rv_query q = about_copy(ref, opts, data, len, lease);

	return rv_client_query(c, &q);
}

int rv_get(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts, void **data,
	   uint64_t *len, uint64_t *lease)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_get_at(c, &ref, opts, data, len, lease);
}

int rv_get_at_nb(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		 void **data, uint64_t *len, uint64_t *lease, rv_done_fn *done, void *user)
{
	struct rv_query q = about_copy(ref, opts, data, len, lease);

	return rv_client_query_nb(c, &q, done, user);
}

int rv_get_nb(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts, void **data,
	      uint64_t *len, uint64_t *lease, rv_done_fn *done, void *user)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_get_at_nb(c, &ref, opts, data, len, lease, done, user);
}

int rv_get_into_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		   void *dst, uint64_t cap, uint64_t *len, uint64_t *lease)
{
	struct rv_query q = about_into(ref, opts, dst, cap, len, lease);

	return rv_client_query(c, &q);
}

int rv_get_into(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts, void *dst,
		uint64_t cap, uint64_t *len, uint64_t *lease)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_get_into_at(c, &ref, opts, dst, cap, len, lease);
}

int rv_get_into_at_nb(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		      void *dst, uint64_t cap, uint64_t *len, uint64_t *lease, rv_done_fn *done,
		      void *user)
{
	struct rv_query q = about_into(ref, opts, dst, cap, len, lease);

	return rv_client_query_nb(c, &q, done, user);
}

int rv_get_into_nb(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts,
		   void *dst, uint64_t cap, uint64_t *len, uint64_t *lease, rv_done_fn *done,
		   void *user)
{
	struct rv_ref ref = rv_client_ref(handle);

	return rv_get_into_at_nb(c, &ref, opts, dst, cap, len, lease, done, user);
}

void rv_free(void *data)
{
	free(data);
}
