/*
 * list.h - an intrusive, circular, doubly linked list. One owner; no locking.
 */
#ifndef RV_DATAPLANE_BASE_LIST_H
#define RV_DATAPLANE_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "dataplane/base/units.h"

struct rv_list {
	struct rv_list *next;
	struct rv_list *prev;
};

static inline void rv_list_init(struct rv_list *l)
{
	l->next = l;
	l->prev = l;
}

static inline bool rv_list_empty(const struct rv_list *l)
{
	return l->next == l;
}

static inline void rv_list_push(struct rv_list *head, struct rv_list *n)
{
	n->prev = head->prev;
	n->next = head;
	head->prev->next = n;
	head->prev = n;
}

static inline void rv_list_push_front(struct rv_list *head, struct rv_list *n)
{
	rv_list_push(head->next, n);
}

/** Take @n out of its list; removing it again is harmless. */
static inline void rv_list_del(struct rv_list *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	rv_list_init(n);
}

static inline struct rv_list *rv_list_pop(struct rv_list *head)
{
	struct rv_list *n = head->next;

	if (n == head)
		return NULL;
	/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what was freed is off the list */
	rv_list_del(n);
	return n;
}

/** Move all of @from to the end of @to. */
static inline void rv_list_splice(struct rv_list *to, struct rv_list *from)
{
	if (rv_list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	rv_list_init(from);
}

#define RV_LIST_ENTRY(ptr, type, member) RV_CONTAINER(ptr, type, member)

#define RV_LIST_EACH(it, head) for ((it) = (head)->next; (it) != (head); (it) = (it)->next)

/** Like RV_LIST_EACH, but @it may be deleted in the body. */
#define RV_LIST_EACH_SAFE(it, tmp, head)                              \
	for ((it) = (head)->next, (tmp) = (it)->next; (it) != (head); \
	     (it) = (tmp), (tmp) = (it)->next)

#endif
