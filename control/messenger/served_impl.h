/*
 * served_impl.h - what served.c and inbound.c share. Nobody else includes this.
 */
#ifndef RV_CONTROL_MESSENGER_SERVED_IMPL_H
#define RV_CONTROL_MESSENGER_SERVED_IMPL_H

#include "control/messenger/messenger_impl.h"
#include "control/messenger/served.h"

/** A name somebody serves; in rv_messenger.served. */
struct rv_served {
	struct rv_list link;
	char name[RV_SERVED_NAME];
	struct rv_server *server;
};

struct rv_served *rv_served_find(struct rv_messenger *m, const char *name, size_t len);

/** Hand a Message to the program that serves it; answers by itself. */
void rv_served_dispatch(struct rv_messenger *m, struct rv_served *sv, struct rv_mlink *l,
			const struct rv_request_header *h, const struct rv_frame *f);

void rv_served_fini(struct rv_messenger *m);

/* inbound.c */
void rv_inbound_answer(struct rv_mlink *l, const struct rv_msg_id *id, enum rv_call_kind kind,
		       bool error, const void *body, size_t len);
void rv_inbound_nack(struct rv_mlink *l, const struct rv_msg_id *id, enum rv_call_kind kind,
		     const char *text);

#endif
