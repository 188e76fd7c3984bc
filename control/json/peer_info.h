/*
 * peer_info.h - who a node is and how to reach it: instance UUID and WorkerAddress.
 *
 *   {"instance_id":"00112233-4455-4677-8899-aabbccddeeff","worker_address":[129,163,116, ...]}
 *
 * The address is opaque here (messenger/address.h reads it). The WorkerId is derived, never sent.
 *
 * @thread any (no state)
 */
#ifndef RV_CONTROL_JSON_PEER_INFO_H
#define RV_CONTROL_JSON_PEER_INFO_H

#include <stddef.h>
#include <stdint.h>

#include "dataplane/base/bytes.h"

#define RV_UUID_LEN  16u
#define RV_UUID_TEXT 37u /* 36 characters and the terminator */

/** Longest WorkerAddress we take. */
#define RV_ADDRESS_MAX 65536u

/**
 * Read 36 characters with hyphens or 32 without, in either case. @return 0 or -EINVAL @cost O(1)
 */
int rv_uuid_parse(const char *text, size_t len, uint8_t out[RV_UUID_LEN]);

/** Write the 36-character form in lower case. @cost O(1) */
void rv_uuid_format(const uint8_t id[RV_UUID_LEN], char out[RV_UUID_TEXT]);

/** The WorkerId of an instance. @cost O(1) */
uint64_t rv_worker_id(const uint8_t id[RV_UUID_LEN]);

struct rv_peer_info {
	uint8_t instance[RV_UUID_LEN];
	uint8_t *address;
	size_t address_len;
};

/**
 * Make one, with a copy of @address.
 *
 * @return 0; -ENOMEM; -EPROTO for an address that is empty or over RV_ADDRESS_MAX
 * @owns   the caller ends it with rv_peer_info_fini()
 */
int rv_peer_info_init(struct rv_peer_info *out, const uint8_t instance[RV_UUID_LEN],
		      const uint8_t *address, size_t len);

void rv_peer_info_fini(struct rv_peer_info *p);

/**
 * Read the JSON form: object or array of two, unknown keys ignored.
 *
 * @param why  NULL, or where a static text goes that says what was wrong
 * @return 0, -EPROTO or -ENOMEM
 * @owns   the caller ends @out with rv_peer_info_fini()
 */
int rv_peer_info_decode(const char *text, size_t len, struct rv_peer_info *out, const char **why);

/** Write the JSON form, as stock nodes write it. Room is w->bad's affair. */
void rv_peer_info_encode(struct rv_writer *w, const struct rv_peer_info *in);

struct rv_json;

/** The same from a parsed value. */
int rv_peer_info_from_json(const struct rv_json *v, struct rv_peer_info *out, const char **why);

/**
 * The same at the front of @c, if it is spelled exactly as stock nodes spell it.
 *
 * @return 0; -EAGAIN: spelled otherwise, try rv_peer_info_from_json(); -EPROTO; -ENOMEM
 */
int rv_peer_info_take(struct rv_cursor *c, struct rv_peer_info *out);

#endif
