/*
 * addr_parse.h - proof that UCX's own walk through a worker address stays inside it.
 *
 * ucp_ep_create() takes no length, and stops the process at a version it does not know; so a peer's address is
 * walked here first:
 *
 *   | version, flags 1..2 | uuid 8 | client id 8? | name 1+n? |
 *   { md 1 | device length 1 | paths 1? | sys_dev 1? | device address n |
 *       { name checksum 2 | attributes | length 1 | interface address n | {length 1, n bytes, lane 1}* }* }*
 *
 * What the attributes take depends on the release and its settings: the self-check learns it from our own address,
 * and without a form that fits this address to its last byte no walk can be made (form NONE: all pass). This proves
 * the framing only: what the addresses inside mean to their transports is UCX's affair (docs/SECURITY.md).
 *
 * @thread any (no state)   @cost O(len), no allocation
 */
#ifndef RV_UCX_ADDR_PARSE_H
#define RV_UCX_ADDR_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rv_addr_form {
	RV_ADDR_NONE,
	RV_ADDR_PLAIN,   /* attributes alone */
	RV_ADDR_INDEXED, /* and a resource index */
};

/** Does a walk in this form end with the address's last byte? */
bool rv_addr_parse(const uint8_t *addr, size_t len, enum rv_addr_form form);

/** The form in which our own address is whole. */
enum rv_addr_form rv_addr_form_of(const uint8_t *own, size_t len);

#endif
