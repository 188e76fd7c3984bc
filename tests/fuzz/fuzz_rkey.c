/*
 * Packed keys of any bytes: a verdict, never an over-read; host memory only is the stricter of the
 * two.
 */
#include "dataplane/base/check.h"
#include "ucx/rkey_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum rv_rkey_verdict any = rv_rkey_parse(data, size, false);
	enum rv_rkey_verdict host = rv_rkey_parse(data, size, true);

	RV_CHECK(host == any || host == RV_RKEY_MEM_TYPE);
	return 0;
}
