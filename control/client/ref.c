#include "dataplane/base/handle.h" /* first: rv.h then leaves struct rv_handle to it */

#include "control/client/ref.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static const char scheme[] = "rv://";

int rv_handle_parse(const char *text, struct rv_handle *handle)
{
	struct rv_handle h;
	int rc;

	if (!text || !handle || *text == '+')
		return -EINVAL;
	rc = rv_handle_parse_text(text, strlen(text), &h);
	if (rc)
		return rc;
	*handle = h;
	return 0;
}

int rv_handle_format(struct rv_handle handle, char *text, size_t size)
{
	char out[RV_HANDLE_TEXT_MAX];
	size_t n = rv_handle_format_text(handle, out);

	if (n >= size)
		return -ERANGE;
	memcpy(text, out, n + 1);
	return (int)n;
}

static int parse_port(const char *text, size_t len, uint16_t *port)
{
	uint32_t v = 0;

	if (len < 1 || len > 5)
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9')
			return -EINVAL;
		v = v * 10 + (uint32_t)(text[i] - '0');
	}
	if (v < 1 || v > UINT16_MAX)
		return -EINVAL;
	*port = (uint16_t)v;
	return 0;
}

/* What a host name or a literal is made of; a name server sees nothing else. */
static bool host_is_sound(const char *text, size_t len, bool bracketed)
{
	if (len < 1 || len >= RV_HOST_MAX)
		return false;
	for (size_t i = 0; i < len; i++) {
		char c = text[i];

		if (c == ':' ? bracketed
			     : (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
				       (c >= 'A' && c <= 'Z') || strchr(".-_%", c))
			continue;
		return false;
	}
	return true;
}

/* `HOST:PORT` of exactly @len characters. */
static int parse_host(const char *text, size_t len, char *host, uint16_t *port)
{
	bool bracketed = len && text[0] == '[';
	const char *name = text + bracketed, *colon;
	const char *end = memchr(text, bracketed ? ']' : ':', len);
	size_t host_len;

	if (!end)
		return -EINVAL;
	host_len = (size_t)(end - name);
	colon = end + bracketed;
	if (colon >= text + len || *colon != ':' || !host_is_sound(name, host_len, bracketed))
		return -EINVAL;
	if (parse_port(colon + 1, (size_t)(text + len - colon - 1), port))
		return -EINVAL;
	memcpy(host, name, host_len);
	host[host_len] = '\0';
	return 0;
}

int rv_host_parse(const char *text, char *host, uint16_t *port)
{
	return parse_host(text, strlen(text), host, port);
}

int rv_ref_parse(const char *text, struct rv_ref *ref)
{
	struct rv_ref r = {0};
	const char *slash;
	int rc;

	if (!text || !ref)
		return -EINVAL;
	if (strncmp(text, scheme, sizeof(scheme) - 1) == 0) {
		text += sizeof(scheme) - 1;
		slash = strchr(text, '/');
		if (!slash || parse_host(text, (size_t)(slash - text), r.host, &r.port))
			return -EINVAL;
		text = slash + 1;
	}
	rc = rv_handle_parse(text, &r.handle);
	if (rc)
		return rc;
	*ref = r;
	return 0;
}

int rv_ref_format(const struct rv_ref *ref, char *text, size_t size)
{
	const char *fmt = strchr(ref->host, ':') ? "%s[%s]:%u/%s" : "%s%s:%u/%s";
	char handle[RV_HANDLE_TEXT_MAX], out[RV_REF_TEXT_MAX];
	int n;

	rv_handle_format_text(ref->handle, handle);
	if (ref->host[0])
		n = snprintf(out, sizeof(out), fmt, scheme, ref->host, ref->port, handle);
	else
		n = snprintf(out, sizeof(out), "%s", handle);
	if (n < 0 || (size_t)n >= size || (size_t)n >= sizeof(out))
		return -ERANGE;
	memcpy(text, out, (size_t)n + 1);
	return n;
}

int rv_host_resolve(const char *host, char out[RV_LITERALS][RV_LITERAL_MAX], const char **why)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *list;
	int rc = getaddrinfo(host, NULL, &hints, &list);
	int n = 0;

	if (rc) {
		*why = gai_strerror(rc);
		return -EHOSTUNREACH;
	}
	for (struct addrinfo *a = list; a && n < RV_LITERALS; a = a->ai_next)
		if (!getnameinfo(a->ai_addr, a->ai_addrlen, out[n], RV_LITERAL_MAX, NULL, 0,
				 NI_NUMERICHOST))
			n++;
	freeaddrinfo(list);
	if (n)
		return n;
	*why = "no usable address";
	return -EHOSTUNREACH;
}
