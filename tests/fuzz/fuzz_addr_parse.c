/*
 * Worker addresses of any bytes: a verdict, never an over-read.
 */
#include "ucx/addr_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	rv_addr_form_of(data, size);
	rv_addr_parse(data, size, RV_ADDR_INDEXED);
	return 0;
}
