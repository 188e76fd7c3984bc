#include "control/json/json.h"

#include <json-c/json.h>
#include <limits.h>

#include "dataplane/base/err.h"

/* json-c says NULL for JSON's null; callers must be able to tell it from "absent". */
static const char null_value;

static struct json_object *unwrap(const struct rv_json *v)
{
	return (const void *)v == &null_value ? NULL : (struct json_object *)(uintptr_t)v;
}

static struct rv_json *wrap(struct json_object *o)
{
	return o ? (struct rv_json *)o : (struct rv_json *)(uintptr_t)&null_value;
}

/* ---- what json-c lets pass, found in the text ---- */

struct scan {
	struct rv_cursor c;
	size_t colons; /* outside strings: one a member */
	const char *why;
};

static uint8_t peek(const struct rv_cursor *c)
{
	return rv_cursor_left(c) ? *c->p : 0;
}

/* The opening quote is taken. An unclosed string is left for json-c to refuse. */
static void scan_string(struct scan *s)
{
	while (rv_cursor_left(&s->c)) {
		uint8_t b = rv_take_u8(&s->c);

		if (b == '"')
			return;
		if (b < 0x20)
			s->why = "control character in a string";
		if (b == '\\')
			rv_take_u8(&s->c);
	}
}

static bool is_digit(uint8_t b)
{
	return b >= '0' && b <= '9';
}

/* An integer must fit: json-c would clamp it. Fractions and exponents are no integers. */
static void scan_number(struct scan *s, bool negative)
{
	bool leading_zero = peek(&s->c) == '0';
	bool fits = true;
	size_t digits = 0;
	uint64_t n = 0;

	for (; is_digit(peek(&s->c)); digits++) {
		uint64_t d = (uint64_t)(rv_take_u8(&s->c) - '0');

		if (__builtin_mul_overflow(n, 10u, &n) || __builtin_add_overflow(n, d, &n))
			fits = false;
	}
	if (leading_zero && digits > 1)
		s->why = "number with a leading zero";
	if (peek(&s->c) == '.' || peek(&s->c) == 'e' || peek(&s->c) == 'E') {
		while (is_digit(peek(&s->c)) || (peek(&s->c) && strchr(".eE+-", peek(&s->c))))
			rv_take_u8(&s->c);
		return;
	}
	if (!fits || (negative && (n == 0 || n > (uint64_t)INT64_MAX + 1)))
		s->why = "integer out of range";
}

static bool is_plain(uint8_t b)
{
	return b && strchr("{}[],truefalsn \t\r\n", b);
}

static const char *scan_text(const char *text, size_t len, size_t *members)
{
	struct scan s = {.c = rv_cursor(text, len)};

	while (rv_cursor_left(&s.c) && !s.why) {
		uint8_t b = peek(&s.c);

		if (is_digit(b)) {
			scan_number(&s, false);
			continue;
		}
		rv_take_u8(&s.c);
		if (b == '"')
			scan_string(&s);
		else if (b == '-' && is_digit(peek(&s.c)))
			scan_number(&s, true);
		else if (b == ':')
			s.colons++;
		else if (!is_plain(b))
			s.why = "not JSON";
	}
	*members = s.colons;
	return s.why;
}

/* Members in the whole tree. */
/* NOLINTNEXTLINE(misc-no-recursion): it is bounded, the parser has refused deeper trees */
static size_t count_members(struct json_object *o)
{
	size_t n = 0;

	if (json_object_is_type(o, json_type_object)) {
		json_object_object_foreach(o, key, val)
		{
			(void)key;
			n += 1 + count_members(val);
		}
	} else if (json_object_is_type(o, json_type_array)) {
		for (size_t i = 0; i < json_object_array_length(o); i++)
			n += count_members(json_object_array_get_idx(o, i));
	}
	return n;
}

static const char *run_tokener(struct json_tokener *tok, const char *text, size_t len,
			       struct json_object **out)
{
	struct json_object *o = json_tokener_parse_ex(tok, text, (int)len);

	/* A number at the very end could go on; a terminator says that it does not. */
	if (json_tokener_get_error(tok) == json_tokener_continue)
		o = json_tokener_parse_ex(tok, "", 1);
	if (json_tokener_get_error(tok) == json_tokener_success) {
		*out = o;
		return NULL;
	}
	if (json_tokener_get_error(tok) == json_tokener_error_depth)
		return "nested too deeply";
	return "not JSON";
}

static int refuse(const char **why, const char *text)
{
	if (why)
		*why = text;
	return -EPROTO;
}

int rv_json_parse(const char *text, size_t len, struct rv_json **doc, const char **why)
{
	struct json_object *o = NULL;
	struct json_tokener *tok;
	const char *wrong;
	size_t members;

	if (len > INT_MAX)
		return refuse(why, "too long");
	wrong = scan_text(text, len, &members);
	if (wrong)
		return refuse(why, wrong);

	tok = json_tokener_new_ex(RV_JSON_DEPTH);
	if (!tok) /* GCOVR_EXCL_BR_LINE: without memory */
		return -ENOMEM;
	json_tokener_set_flags(tok, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
	wrong = run_tokener(tok, text, len, &o);
	json_tokener_free(tok);

	/*
	 * A second value under a key replaces the first, so the tree has fewer members than the
	 * text.
	 */
	if (!wrong && count_members(o) != members) {
		json_object_put(o);
		wrong = "duplicate key";
	}
	if (wrong)
		return refuse(why, wrong);
	*doc = wrap(o);
	return 0;
}

void rv_json_free(struct rv_json *doc)
{
	json_object_put(unwrap(doc));
}

/* ---- looking at a tree ---- */

enum rv_json_kind rv_json_kind(const struct rv_json *v)
{
	switch (json_object_get_type(unwrap(v))) { /* GCOVR_EXCL_BR_LINE: each type has its case */
	case json_type_boolean:
		return RV_JSON_BOOL;
	case json_type_int:
		return RV_JSON_INT;
	case json_type_double:
		return RV_JSON_DOUBLE;
	case json_type_string:
		return RV_JSON_STRING;
	case json_type_array:
		return RV_JSON_ARRAY;
	case json_type_object:
		return RV_JSON_OBJECT;
	case json_type_null:
		break;
	}
	return RV_JSON_NULL;
}

const struct rv_json *rv_json_get(const struct rv_json *v, const char *key)
{
	struct json_object *member;

	if (!v || rv_json_kind(v) != RV_JSON_OBJECT)
		return NULL;
	return json_object_object_get_ex(unwrap(v), key, &member) ? wrap(member) : NULL;
}

const struct rv_json *rv_json_at(const struct rv_json *v, size_t i)
{
	if (!v || rv_json_kind(v) != RV_JSON_ARRAY || i >= rv_json_nr(v))
		return NULL;
	return wrap(json_object_array_get_idx(unwrap(v), i));
}

const struct rv_json *rv_json_field(const struct rv_json *v, const char *key, size_t i)
{
	const struct rv_json *member = rv_json_get(v, key);

	return member ? member : rv_json_at(v, i);
}

size_t rv_json_nr(const struct rv_json *v)
{
	if (!v)
		return 0;
	if (rv_json_kind(v) == RV_JSON_ARRAY)
		return json_object_array_length(unwrap(v));
	if (rv_json_kind(v) == RV_JSON_OBJECT)
		return (size_t)json_object_object_length(unwrap(v));
	return 0;
}

int rv_json_each(const struct rv_json *v,
		 int (*fn)(void *user, const char *key, const struct rv_json *member), void *user)
{
	if (!v || rv_json_kind(v) != RV_JSON_OBJECT)
		return 0;
	json_object_object_foreach(unwrap(v), key, member)
	{
		int rc = fn(user, key, wrap(member));

		if (rc)
			return rc;
	}
	return 0;
}

int rv_json_uint(const struct rv_json *v, uint64_t max, uint64_t *out)
{
	uint64_t n;

	if (!v || rv_json_kind(v) != RV_JSON_INT)
		return -EPROTO;
	/*
	 * json-c clamps at both ends: below 0 the unsigned reading says 0, the signed one is below
	 * it.
	 */
	n = json_object_get_uint64(unwrap(v));
	if (json_object_get_int64(unwrap(v)) < 0 || n > max)
		return -EPROTO;
	*out = n;
	return 0;
}

int rv_json_double(const struct rv_json *v, double *out)
{
	if (!v || (rv_json_kind(v) != RV_JSON_INT && rv_json_kind(v) != RV_JSON_DOUBLE))
		return -EPROTO;
	*out = json_object_get_double(unwrap(v));
	return 0;
}

int rv_json_bool(const struct rv_json *v, bool *out)
{
	if (!v || rv_json_kind(v) != RV_JSON_BOOL)
		return -EPROTO;
	*out = json_object_get_boolean(unwrap(v));
	return 0;
}

const char *rv_json_text(const struct rv_json *v, size_t *len)
{
	if (!v || rv_json_kind(v) != RV_JSON_STRING)
		return NULL;
	*len = (size_t)json_object_get_string_len(unwrap(v));
	return json_object_get_string(unwrap(v));
}

const char *rv_json_print(const struct rv_json *v)
{
	struct json_object *o = unwrap(v);

	return o ? json_object_to_json_string_ext(o, JSON_C_TO_STRING_SPACED |
							     JSON_C_TO_STRING_NOSLASHESCAPE)
		 : "null";
}
