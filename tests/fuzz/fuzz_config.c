/* Configuration files of any bytes; one that is taken prints as a file that is taken. */
#include <stdlib.h>

#include "control/config/config_file.h"
#include "dataplane/base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int load(struct rv_config *cfg, const void *text, size_t size)
{
	FILE *f = fmemopen((void *)(uintptr_t)text, size, "r");
	int rc;

	RV_CHECK(f);
	RV_CHECK(rv_config_defaults(cfg) == 0);
	rc = rv_config_load_stream(cfg, f, "fuzz", NULL);
	fclose(f);
	return rc ? rc : rv_config_finish(cfg, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rv_config cfg, again;
	char *text = NULL;
	size_t len = 0;
	FILE *f;

	if (size == 0)
		return 0;
	if (load(&cfg, data, size) == 0) {
		f = open_memstream(&text, &len);
		RV_CHECK(f);
		rv_config_print(&cfg, f);
		fclose(f);
		RV_CHECK(load(&again, text, len) == 0);
		RV_CHECK(rv_config_diff(&cfg, &again, NULL, NULL) == 0);
		rv_config_fini(&again);
		free(text);
	}
	rv_config_fini(&cfg);
	return 0;
}
