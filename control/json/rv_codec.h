/*
 * rv_codec.h - the bodies of `_hello` and of the seven `_rv_*` handlers.
 *
 * Encoders write exactly the bytes that stock nodes write. Decoders try that spelling first,
 * through the cursor; whatever else is JSON goes through json.h: other key order, white space,
 * unknown keys (ignored), arrays in place of objects. A missing or duplicate key, a wrong type, a
 * second key beside a variant or bytes behind the value are -EPROTO, and @why (NULL is fine) then
 * gets a static text that says so.
 *
 *   _rv_metadata    {"handle":{"hi":H,"lo":L}}   -> {"total_len":..,"refcount":..,"pinned":..}
 *   _rv_acquire     {"handle":{..},"rdma":null}  -> {"Ready":{..}}
 *                   {"handle":{..},"rdma":{"backends":["ucx"]}}   -> {"Rdma":{..}}, or Ready as well
 *   _rv_pull        {"transfer_id":T,"chunk_index":I}                   -> the chunk, raw
 *   _rv_ref         {"handle":{..}}                                     -> nothing
 *   _rv_detach, _rv_release, _rv_lease_renew   {"handle":{..},"lease_id":N}
 *
 * Encoders leave the question of room to w->bad.
 *
 * @thread any (no state)
 * @cost   canonical bodies O(bytes) without allocation (peer infos are copied); others build a tree
 */
#ifndef RV_CONTROL_JSON_RV_CODEC_H
#define RV_CONTROL_JSON_RV_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control/json/peer_info.h"
#include "dataplane/base/bytes.h"
#include "dataplane/base/handle.h"

/** Longest `_rv_*` body and longest `_hello` body that are looked at. */
#define RV_BODY_MAX       65536u
#define RV_BODY_HELLO_MAX 524288u

/** Longest descriptor that is handed on. */
#define RV_BODY_DESC_MAX (29u + 4096u)

/** Room that every encoder here fits in, but for `_hello` and the Rdma answer. */
#define RV_BODY_SMALL 256u

/** Room for an Rdma answer with the longest descriptor. */
#define RV_BODY_RDMA_ROOM (4u * RV_BODY_DESC_MAX + 128u)

/* `_rv_metadata` and `_rv_ref` request */
void rv_body_handle_encode(struct rv_writer *w, struct rv_handle h);
int rv_body_handle_decode(const void *text, size_t len, struct rv_handle *out, const char **why);

/* `_rv_detach`, `_rv_release`, `_rv_lease_renew` request */
struct rv_body_lease {
	struct rv_handle handle;
	uint64_t lease_id;
};

void rv_body_lease_encode(struct rv_writer *w, const struct rv_body_lease *in);
int rv_body_lease_decode(const void *text, size_t len, struct rv_body_lease *out, const char **why);

/* `_rv_pull` request */
struct rv_body_pull {
	uint64_t transfer_id;
	uint32_t chunk_index;
};

void rv_body_pull_encode(struct rv_writer *w, const struct rv_body_pull *in);
int rv_body_pull_decode(const void *text, size_t len, struct rv_body_pull *out, const char **why);

/* `_rv_metadata` answer */
struct rv_body_metadata {
	uint64_t total_len;
	uint64_t refcount;
	bool pinned;
};

void rv_body_metadata_encode(struct rv_writer *w, const struct rv_body_metadata *in);
int rv_body_metadata_decode(const void *text, size_t len, struct rv_body_metadata *out,
			    const char **why);

/* Backends that an acquire offers; a bit each. Names we do not know set no bit. */
#define RV_OFFER_UCX   1u
#define RV_OFFER_VERBS 2u

/* `_rv_acquire` request; both bits are written verbs first */
struct rv_body_acquire {
	struct rv_handle handle;
	bool has_offer; /* there was an offer, perhaps of nothing we know */
	uint32_t offer;
	uint32_t
		verbs_qp; /* `"verbs":{"qp":N}`; 0: not said. Written only beside an offer of verbs */
};

void rv_body_acquire_encode(struct rv_writer *w, const struct rv_body_acquire *in);
int rv_body_acquire_decode(const void *text, size_t len, struct rv_body_acquire *out,
			   const char **why);

/* `_rv_acquire` answer */
struct rv_body_ready {
	uint64_t lease_id;
	uint64_t transfer_id;
	uint64_t total_len;
	uint32_t chunk_size;
	uint32_t chunk_count;
};

struct rv_body_rdma {
	uint64_t lease_id;
	const uint8_t *descriptor; /* NULL when it is longer than the caller's buffer */
	size_t descriptor_len;
	uint64_t lease_timeout_ms; /* 0: no deadline */
};

struct rv_body_grant {
	bool is_rdma;
	struct rv_body_ready ready;
	struct rv_body_rdma rdma;
	bool has_xxh3; /* our own nodes, where asked to: XXH3-64 of the payload */
	uint64_t xxh3;
};

void rv_body_grant_encode(struct rv_writer *w, const struct rv_body_grant *in);

/**
 * @param desc  where the descriptor goes; out->rdma.descriptor then points there. A longer one is
 *              counted and not kept: the descriptor decoder refuses it, and the caller still has the
 *              lease to end.
 */
int rv_body_grant_decode(const void *text, size_t len, uint8_t *desc, size_t desc_cap,
			 struct rv_body_grant *out, const char **why);

/* `_hello` request */
void rv_body_hello_encode(struct rv_writer *w, const struct rv_peer_info *in);

/** @owns the caller ends @out with rv_peer_info_fini() @return 0, -EPROTO or -ENOMEM */
int rv_body_hello_decode(const void *text, size_t len, struct rv_peer_info *out, const char **why);

/*
 * `_hello` and `_list_handlers` answer: {"handlers":["..."]}, and between our own nodes one key
 * more, "peer_info".
 */
void rv_body_handlers_encode(struct rv_writer *w, const char *const *names, size_t nr,
			     const struct rv_peer_info *peer);

/**
 * @param name      called for each name, which is not terminated; on failure not called at all
 * @param peer      NULL, or where the answerer's peer info goes; end it with rv_peer_info_fini()
 * @param has_peer  NULL, or whether there was one; a peer info that does not decode is as if absent
 * @return 0, -EPROTO or -ENOMEM
 */
int rv_body_handlers_decode(const void *text, size_t len,
			    void (*name)(void *user, const char *name, size_t len), void *user,
			    struct rv_peer_info *peer, bool *has_peer, const char **why);

#endif
