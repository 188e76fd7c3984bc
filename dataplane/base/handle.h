/*
 * handle.h - the 128-bit name of staged bytes: owner's WorkerId above, the owner's slot id below.
 *
 * A slot's local id carries its reactor in the low RV_LOCAL_REACTOR_BITS and is never reused. The text
 * form is one unsigned decimal of up to 39 digits, as stock velo prints it.
 */
#ifndef RV_DATAPLANE_BASE_HANDLE_H
#define RV_DATAPLANE_BASE_HANDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RV_LOCAL_REACTOR_BITS 6
#define RV_MAX_REACTORS       (1u << RV_LOCAL_REACTOR_BITS)

/** Longest text form and its terminator. */
#define RV_HANDLE_TEXT 40

struct rv_handle {
	uint64_t worker; /* high half: the owner's WorkerId */
	uint64_t local;  /* low half: the owner's slot id, never 0 */
};

static inline unsigned rv_local_reactor(uint64_t local)
{
	return (unsigned)(local & (RV_MAX_REACTORS - 1));
}

static inline bool rv_handle_equal(struct rv_handle a, struct rv_handle b)
{
	return a.worker == b.worker && a.local == b.local;
}

/**
 * Parse exactly @len characters as an unsigned decimal (one leading '+' is allowed, as velo allows it).
 *
 * @return 0; -EINVAL for anything but digits or an empty text; -ERANGE above 2^128 - 1
 * @thread any
 */
int rv_handle_parse_text(const char *text, size_t len, struct rv_handle *out);

/** Write the decimal form. @return its length. @thread any */
size_t rv_handle_format_text(struct rv_handle h, char out[RV_HANDLE_TEXT]);

#endif
