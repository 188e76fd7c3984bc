#include "control/uring/sockaddr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

int rv_sockaddr_parse(const char *host, uint16_t port, struct sockaddr_storage *sa, socklen_t *len)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)sa;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)sa;
	char bare[INET6_ADDRSTRLEN + 1];
	size_t n = strlen(host);

	if (n >= 2 && host[0] == '[' && host[n - 1] == ']') {
		host++;
		n -= 2;
	}
	if (n >= sizeof(bare))
		return -EINVAL;
	memcpy(bare, host, n);
	bare[n] = '\0';
	memset(sa, 0, sizeof(*sa));
	if (inet_pton(AF_INET, bare, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		*len = sizeof(*v4);
		return 0;
	}
	if (inet_pton(AF_INET6, bare, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
		*len = sizeof(*v6);
		return 0;
	}
	return -EINVAL;
}

uint16_t rv_sockaddr_port(const struct sockaddr_storage *sa)
{
	if (sa->ss_family == AF_INET)
		return ntohs(((const struct sockaddr_in *)sa)->sin_port);
	if (sa->ss_family == AF_INET6)
		return ntohs(((const struct sockaddr_in6 *)sa)->sin6_port);
	return 0;
}

void rv_sockaddr_format(const struct sockaddr_storage *sa, char *out, size_t cap)
{
	char ip[INET6_ADDRSTRLEN] = "?";

	if (sa->ss_family == AF_INET) {
		inet_ntop(AF_INET, &((const struct sockaddr_in *)sa)->sin_addr, ip, sizeof(ip));
		snprintf(out, cap, "%s:%u", ip, rv_sockaddr_port(sa));
	} else {
		inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)sa)->sin6_addr, ip, sizeof(ip));
		snprintf(out, cap, "[%s]:%u", ip, rv_sockaddr_port(sa));
	}
}

bool rv_sockaddr_is_local(const struct sockaddr_storage *peer, const struct sockaddr_storage *self)
{
	if (peer->ss_family == AF_INET) {
		const struct in_addr *a = &((const struct sockaddr_in *)peer)->sin_addr;

		return ntohl(a->s_addr) >> 24 == 127 ||
		       (self->ss_family == AF_INET &&
			a->s_addr == ((const struct sockaddr_in *)self)->sin_addr.s_addr);
	}
	if (peer->ss_family == AF_INET6) {
		const struct in6_addr *a = &((const struct sockaddr_in6 *)peer)->sin6_addr;

		return IN6_IS_ADDR_LOOPBACK(a) ||
		       (self->ss_family == AF_INET6 &&
			memcmp(a, &((const struct sockaddr_in6 *)self)->sin6_addr, sizeof(*a)) ==
				0);
	}
	return true;
}
