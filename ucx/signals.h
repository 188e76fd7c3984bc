/*
 * signals.h - undo what libucs does to the process's signals when it is loaded.
 */
#ifndef RV_UCX_SIGNALS_H
#define RV_UCX_SIGNALS_H

/**
 * Give HUP, ILL, BUS, FPE and SEGV back to the default wherever the handler lies inside libucs. A handler of
 * the program's own, or of a sanitizer, is left alone.
 *
 * @return how many were reset
 * @thread init
 */
unsigned rv_ucx_signals_release(void);

#endif
