#include "ucx/addr_parse.h"

#include "dataplane/base/bytes.h"

/* Header */
#define VERSION_MASK   0x0fu
#define FLAG_NAME      0x01u
#define FLAG_CLIENT_ID 0x04u

/* A device's, an interface's and a lane's bytes */
#define LAST          0x80u
#define MD_EMPTY      0x80u
#define MD_MASK       0x7fu
#define DEV_PATHS     0x40u
#define DEV_SYS       0x20u
#define DEV_MASK      0x1fu
#define IFACE_HAS_EPS 0x40u
#define IFACE_MASK    0x3fu

/* Attributes of an interface, by version */
static const size_t attr_bytes[] = {16, 8};

/* In version 2 the largest value says that a byte with the real one follows. */
static size_t take_extended(struct rv_cursor *c, uint8_t first, uint8_t mask, unsigned version)
{
	uint8_t v = first & mask;

	return version > 0 && v == mask ? rv_take_u8(c) : v;
}

static bool walk_eps(struct rv_cursor *c)
{
	uint8_t lane;

	do {
		rv_take_bytes(c, rv_take_u8(c));
		lane = rv_take_u8(c);
	} while (!c->bad && !(lane & LAST));
	return !c->bad;
}

static bool walk_ifaces(struct rv_cursor *c, unsigned version, size_t attrs)
{
	uint8_t first;

	do {
		rv_take_bytes(c, 2 + attrs);
		first = rv_take_u8(c);
		rv_take_bytes(c, take_extended(c, first, IFACE_MASK, version));
		if (first & IFACE_HAS_EPS && !walk_eps(c))
			return false;
	} while (!c->bad && !(first & LAST));
	return !c->bad;
}

static bool walk_devices(struct rv_cursor *c, unsigned version, size_t attrs)
{
	uint8_t md, dev;

	do {
		size_t len;

		md = rv_take_u8(c);
		take_extended(c, md, MD_MASK, version);
		dev = rv_take_u8(c);
		len = take_extended(c, dev, DEV_MASK, version);
		if (dev & DEV_PATHS)
			rv_take_u8(c);
		if (dev & DEV_SYS)
			rv_take_u8(c);
		rv_take_bytes(c, len);
		if (!c->bad && !(md & MD_EMPTY) && !walk_ifaces(c, version, attrs))
			return false;
	} while (!c->bad && !(dev & LAST));
	return !c->bad;
}

static bool is_list_empty(const struct rv_cursor *c)
{
	struct rv_cursor peek = *c;

	return rv_take_u8(&peek) == UINT8_MAX;
}

bool rv_addr_parse(const uint8_t *addr, size_t len, enum rv_addr_form form)
{
	struct rv_cursor c = rv_cursor(addr, len);
	uint8_t head = rv_take_u8(&c);
	unsigned version = head & VERSION_MASK;
	uint8_t flags;

	if (form == RV_ADDR_NONE)
		return true;
	if (version > 1)
		return false;
	flags = version ? rv_take_u8(&c) : head >> 4;
	rv_take_bytes(&c, 8); /* uuid: a worker's address always has one */
	if (flags & FLAG_CLIENT_ID)
		rv_take_bytes(&c, 8);
	if (flags & FLAG_NAME)
		rv_take_bytes(&c, rv_take_u8(&c));
	if (c.bad || is_list_empty(&c)) /* nothing to reach it by */
		return false;
	return walk_devices(&c, version, attr_bytes[version] + (form == RV_ADDR_INDEXED)) &&
	       rv_cursor_left(&c) == 0;
}

enum rv_addr_form rv_addr_form_of(const uint8_t *own, size_t len)
{
	if (rv_addr_parse(own, len, RV_ADDR_PLAIN))
		return RV_ADDR_PLAIN;
	return rv_addr_parse(own, len, RV_ADDR_INDEXED) ? RV_ADDR_INDEXED : RV_ADDR_NONE;
}
