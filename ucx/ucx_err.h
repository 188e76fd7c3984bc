/*
 * ucx_err.h - the one place where a ucs_status_t becomes an errno of ours.
 */
#ifndef RV_UCX_UCX_ERR_H
#define RV_UCX_UCX_ERR_H

#include <ucs/type/status.h>

/** @return 0 for UCS_OK, else a negative errno of dataplane/base/err.h. @thread any */
int rv_ucx_err(ucs_status_t status);

/**
 * What a finished GET tells its caller, who chooses between "the way broke" and "it failed".
 *
 * @return 0, -ECONNRESET or -EIO
 * @thread any
 */
int rv_ucx_get_err(ucs_status_t status);

#endif
