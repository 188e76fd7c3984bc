/*
 * json.h - reading JSON that a stranger wrote, and writing our own.
 *
 * Reading is json-c made strict: nothing behind the value, no duplicate keys, at most RV_JSON_DEPTH
 * levels, well-formed UTF-8, and integers that are exact or refused (json-c alone clamps 2^64 to
 * 2^64 - 1 and lets a duplicate key's last value win). A parsed value is borrowed from its
 * document.
 *
 * A tree costs up to a hundred times its text, so the caller bounds the text before it comes here.
 *
 * @thread any (no shared state)
 */
#ifndef RV_CONTROL_JSON_JSON_H
#define RV_CONTROL_JSON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dataplane/base/bytes.h"

#define RV_JSON_DEPTH 32

struct rv_json;

enum rv_json_kind {
	RV_JSON_NULL,
	RV_JSON_BOOL,
	RV_JSON_INT,
	RV_JSON_DOUBLE,
	RV_JSON_STRING,
	RV_JSON_ARRAY,
	RV_JSON_OBJECT,
};

/**
 * Parse one value that takes all of the text, white space aside.
 *
 * @param[out] doc  free it with rv_json_free()
 * @param why       NULL, or where a static text goes that says what was wrong
 * @return 0, -EPROTO or -ENOMEM
 */
int rv_json_parse(const char *text, size_t len, struct rv_json **doc, const char **why);

/** Free a document and every value in it; NULL is fine. */
void rv_json_free(struct rv_json *doc);

enum rv_json_kind rv_json_kind(const struct rv_json *v);

/**
 * A member of an object. @return NULL when absent, or when @v is no object. JSON null is not NULL.
 */
const struct rv_json *rv_json_get(const struct rv_json *v, const char *key);

/** An element of an array. @return NULL when there is none, or when @v is no array */
const struct rv_json *rv_json_at(const struct rv_json *v, size_t i);

/**
 * A struct's field: an object's member @key or, as stock nodes also take it, the element @i of an
 * array.
 */
const struct rv_json *rv_json_field(const struct rv_json *v, const char *key, size_t i);

/** Elements of an array, members of an object; 0 for all else. */
size_t rv_json_nr(const struct rv_json *v);

/**
 * Call @fn for each member of an object until it returns non-zero.
 *
 * @return what it returned last, or 0
 */
int rv_json_each(const struct rv_json *v,
		 int (*fn)(void *user, const char *key, const struct rv_json *member), void *user);

/** An exact integer 0 .. @max; 7.0, "7", -1 and NULL are none. @return 0 or -EPROTO */
int rv_json_uint(const struct rv_json *v, uint64_t max, uint64_t *out);

/** Any number. @return 0 or -EPROTO */
int rv_json_double(const struct rv_json *v, double *out);

/** @return 0 or -EPROTO */
int rv_json_bool(const struct rv_json *v, bool *out);

/** A string's bytes, terminated as well; they may contain NUL. @return NULL when @v is no string */
const char *rv_json_text(const struct rv_json *v, size_t *len);

/** A value's text, on one line; numbers as they were spelt. Borrowed from its document until it is asked for again. */
const char *rv_json_print(const struct rv_json *v);

/*
 * Writing, onto a buffer that grows. Commas come by themselves; the caller balances its brackets.
 *
 *   rv_json_out_object(&o);
 *   rv_json_out_key(&o, "slots");
 *   rv_json_out_u64(&o, 3);
 *   rv_json_out_object_end(&o);
 */
struct rv_json_out {
	char *buf; /* terminated once anything was written */
	size_t len;
	size_t cap;
	bool comma; /* the next value is not the first of its list */
	bool bad;   /* out of memory: the text is not complete */
};

void rv_json_out_init(struct rv_json_out *o);

/** Free the buffer. */
void rv_json_out_fini(struct rv_json_out *o);

/** Forget the text, keep the buffer. */
void rv_json_out_reset(struct rv_json_out *o);

void rv_json_out_object(struct rv_json_out *o);
void rv_json_out_object_end(struct rv_json_out *o);
void rv_json_out_array(struct rv_json_out *o);
void rv_json_out_array_end(struct rv_json_out *o);
void rv_json_out_key(struct rv_json_out *o, const char *key);
void rv_json_out_null(struct rv_json_out *o);
void rv_json_out_bool(struct rv_json_out *o, bool v);
void rv_json_out_u64(struct rv_json_out *o, uint64_t v);
void rv_json_out_i64(struct rv_json_out *o, int64_t v);

/** The shortest text that reads back as the same number; null for what JSON has no number for. */
void rv_json_out_double(struct rv_json_out *o, double v);

/** A string. Bytes that are not UTF-8 become U+FFFD. */
void rv_json_out_text(struct rv_json_out *o, const char *text, size_t len);

/** A terminated string; NULL becomes null. */
void rv_json_out_str(struct rv_json_out *o, const char *text);

/** A quoted JSON string into a fixed buffer, escaped as stock nodes escape it. */
void rv_json_put_text(struct rv_writer *w, const char *text, size_t len);

/** A decimal number into a fixed buffer. */
void rv_json_put_u64(struct rv_writer *w, uint64_t v);

#endif
