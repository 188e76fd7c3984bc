/*
 * A region's guard, its copy gate and the latch (dataplane/mem/region.h, G1 to G3; dataplane/engine/region.c),
 * checked by Spin.
 *
 *   session  the client: stages, ends what it staged or leaves it, closes with time to wait or without
 *   reactor  owns the guards and the state; grants one transfer, asks the slow thread to unmap, is told
 *   copier   the net core: reads chunks while it has the transfer: enters the gate, reads, leaves
 *   slow     latches the gate, waits for the copies inside, gives the pages back; frees the record
 *
 * The two stores that need a fence each have a buffer that memory drains at any time.
 *
 *   no copy reads pages that were given back, nobody touches a freed record      asserts in copier
 *   the client is told when the pages are its own, and not before                assert in session
 *   a region said to be drained had no guard left                                assert in reactor
 *   every close is answered and every record freed in the end                    no invalid end state
 *   without FENCE the check must find a copy of given-back pages                 the test runs it both ways
 */
#ifndef NO_FENCE
#define FENCE(b) (!b)
#else
#define FENCE(b) true
#endif

mtype = { STAGE, END, CLOSE, CLOSE_NOW };
mtype = { OPEN, CLOSING, UNMAPPING, GONE };

chan to_reactor = [3] of { mtype };
chan to_slow = [1] of { bit };      /* 0: unmap, 1: free */
chan from_slow = [1] of { bit };
chan told = [1] of { bit };
chan transfer = [1] of { bit };     /* granted */
chan end_transfer = [1] of { bit };
chan transfer_gone = [1] of { bit };

bool pages_ours = true; /* false: the client's again */
bool freed = false;

byte inside;      /* the gate, as memory has it */
bool closed;
bool inside_buf;  /* the copier's increment is still in its store buffer */
bool closed_buf;  /* the slow thread's store */

active proctype memory()
{
end:
	do
	:: atomic { inside_buf -> inside++; inside_buf = false }
	:: atomic { closed_buf -> closed = true; closed_buf = false }
	od
}

active proctype copier()
{
end:
	transfer ? _;
	do
	:: end_transfer ? _ -> break
	:: empty(end_transfer) ->           /* a pull */
		assert(!freed);
		inside_buf = true;          /* G1: rv_copy_enter */
		FENCE(inside_buf);
		if
		:: !closed ->
			assert(pages_ours); /* pread */
			assert(pages_ours)
		:: else
		fi;
		(!inside_buf);              /* its own stores stay in order */
		assert(!freed);
		inside--                    /* G3: rv_copy_leave */
	od;
	transfer_gone ! 0
}

active proctype slow()
{
	bit what;

end:
	do
	:: to_slow ? what ->
		if
		:: what == 0 ->
			closed_buf = true;          /* G2: rv_copy_latch */
			FENCE(closed_buf);
			(inside == 0);
			pages_ours = false;         /* unmapped, replaced by zeros */
			from_slow ! 0
		:: else -> freed = true
		fi
	od
}

active proctype reactor()
{
	mtype state = OPEN, m;
	byte slots = 0, guards = 0;
	bool granted = false, ending = false, timed_out = false, asked = false, answered = false;

	do
	:: to_reactor ? m ->
		if
		:: m == STAGE ->
			guards++;                   /* the guard first, then the state */
			if
			:: state == OPEN -> slots++
			:: else -> guards--
			fi
		:: m == END ->
			if
			:: slots > 0 -> slots--; guards--
			:: else
			fi
		:: m == CLOSE -> state = CLOSING
		:: m == CLOSE_NOW -> state = CLOSING; timed_out = guards > 0
		fi
	:: slots > 0 && !granted -> granted = true; guards++; transfer ! 0
	:: granted && !ending -> ending = true; end_transfer ! 0     /* its lease ends, whenever */
	:: transfer_gone ? _ -> guards--
	:: state == CLOSING && guards > 0 -> timed_out = true        /* the deadline, or none was given */
	:: state == CLOSING && (guards == 0 || timed_out) ->
		assert(timed_out || guards == 0);
		state = UNMAPPING;
		to_slow ! 0
	:: from_slow ? _ -> state = GONE; told ! timed_out
	:: state == GONE && guards == 0 && slots == 0 -> to_slow ! 1; break
	od
}

active proctype session()
{
	byte n = 0;

	to_reactor ! STAGE;
	if
	:: to_reactor ! STAGE
	:: skip
	fi;
	if
	:: to_reactor ! END
	:: skip
	fi;
	if
	:: to_reactor ! CLOSE
	:: to_reactor ! CLOSE_NOW
	fi;
	told ? _;
	assert(!pages_ours);
	do                                  /* what is left is dropped */
	:: n < 2 -> to_reactor ! END; n++
	:: n == 2 -> break
	od
}
