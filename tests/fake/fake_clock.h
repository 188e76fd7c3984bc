/*
 * fake_clock.h - time that stands still until a test moves it.
 */
#ifndef RV_TESTS_FAKE_CLOCK_H
#define RV_TESTS_FAKE_CLOCK_H

#include <stdint.h>

/** What fake_clock() says; starts at 1,000 s. */
extern uint64_t fake_now_ns;

/** For rv_reactor_conf.clock. */
uint64_t fake_clock(void);

#endif
