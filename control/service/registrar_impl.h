/*
 * registrar_impl.h - what the registrar's own files share. Nobody else includes this.
 */
#ifndef RV_CONTROL_SERVICE_REGISTRAR_IMPL_H
#define RV_CONTROL_SERVICE_REGISTRAR_IMPL_H

#include "control/service/registrar.h"

/* registrar.c */
void rv_registrar_publish(struct rv_registrar *r);
/** Does any fabric let software read our addresses, whatever is registered? */
bool rv_registrar_emulated(const struct rv_registrar *r);
/** From @b, at the cost of what is warm where that is in the way. @return false: it has not so much */
bool rv_registrar_take(struct rv_registrar *r, struct rv_budget *b, uint64_t len);
/** Count a failure. @return @rc */
int rv_registrar_failed(struct rv_registrar *r, enum rv_registration_failure why, int rc);
/** The system refused to register @len bytes more, which the budget counts: it is what could be registered now. */
void rv_registrar_lower_budget(struct rv_registrar *r, uint64_t len, int rc);
/** Where it was lowered, and some time has passed: twice as much may be tried. */
void rv_registrar_raise_budget(struct rv_registrar *r, uint64_t now_ns);
/** Make an arena's pages known to every fabric, or to none. */
int rv_registrar_map(struct rv_registrar *r, struct rv_arena *a);
/** @return true if every fabric confirmed that it has let go */
bool rv_registrar_unmap(struct rv_registrar *r, struct rv_arena *a);

/* registrar_region.c */
void rv_registrar_run_ask(struct rv_registrar *r, struct rv_pool_ask *a);

#endif
