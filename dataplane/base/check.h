/*
 * check.h - RV_CHECK: facts without which going on would corrupt data. Active in every build.
 */
#ifndef RV_DATAPLANE_BASE_CHECK_H
#define RV_DATAPLANE_BASE_CHECK_H

/** Print the fact and abort. @thread any */
_Noreturn void rv_check_failed(const char *cond, const char *file, int line);

#define RV_CHECK(cond)                                              \
	do {                                                        \
		if (__builtin_expect(!(cond), 0))                   \
			rv_check_failed(#cond, __FILE__, __LINE__); \
	} while (0)

#endif
