/*
 * sockaddr.h - IP literals and ports as socket addresses, and back. No name is ever looked up here.
 */
#ifndef RV_CONTROL_URING_SOCKADDR_H
#define RV_CONTROL_URING_SOCKADDR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/** @return 0, or -EINVAL: @host is no IPv4 or IPv6 literal (brackets are allowed). @thread any */
int rv_sockaddr_parse(const char *host, uint16_t port, struct sockaddr_storage *sa, socklen_t *len);

uint16_t rv_sockaddr_port(const struct sockaddr_storage *sa);

/** "127.0.0.1:7471" or "[::1]:7471". */
void rv_sockaddr_format(const struct sockaddr_storage *sa, char *out, size_t cap);

/** Is it this host's: loopback, or equal to @self? */
bool rv_sockaddr_is_local(const struct sockaddr_storage *peer, const struct sockaddr_storage *self);

#endif
