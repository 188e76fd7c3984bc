/*
 * The reactor's sleep and the sender's wake (dataplane/lcore/cells.c, W1 and W2), checked by Spin.
 *
 * Each thread has a store buffer of one entry for each variable it writes, drained at any time or by its
 * fence: the memory model under which the fences matter. Two senders push one cell each into a ring of their
 * own; the sleeper must serve both and may sleep only when nobody will wake it for nothing less.
 *
 *   no end state with a cell in a ring (deadlock check)      spin -run -DSAFETY -DNOCLAIM
 *   without FENCE the check must find the lost wake-up       the test runs it both ways
 */
#ifndef NO_FENCE
#define FENCE(b) (!b)
#else
#define FENCE(b) true
#endif

bool ring[2];       /* a cell is in the ring, as memory has it */
bool asleep;        /* as memory has it */
byte eventfd;       /* counts kicks; the kernel's, so always coherent */
byte served;

bool ring_buf[2];   /* sender i's push is still in its store buffer */
bool asleep_buf;    /* the sleeper's store of `asleep = true` is still in its buffer */

/* Memory takes a buffered store whenever it likes. */
active proctype memory()
{
end:
	do
	:: atomic { ring_buf[0] -> ring[0] = true; ring_buf[0] = false }
	:: atomic { ring_buf[1] -> ring[1] = true; ring_buf[1] = false }
	:: atomic { asleep_buf -> asleep = true; asleep_buf = false }
	od
}

proctype sender(byte me)
{
	ring_buf[me] = true;                  /* rv_ring_push */
	FENCE(ring_buf[me]);                  /* W1 */
	if
	:: asleep -> eventfd++                /* rv_port_kick */
	:: else
	fi
}

/* A thread sees its own buffered store, and of the rings what memory has. */
inline poll_rings()
{
	if
	:: atomic { ring[0] -> ring[0] = false; served++ }
	:: !ring[0]
	fi;
	if
	:: atomic { ring[1] -> ring[1] = false; served++ }
	:: !ring[1]
	fi
}

proctype sleeper()
{
	do
	:: served == 2 -> break
	:: else ->
		poll_rings();
		asleep_buf = true;            /* rv_port_sleep */
		FENCE(asleep_buf);            /* W2 */
		if
		:: ring[0] || ring[1] || served == 2  /* pending: do not sleep */
		:: else -> eventfd > 0        /* sleeps until kicked */
		fi;
		atomic { asleep_buf = false; asleep = false; eventfd = 0 } /* rv_port_wake */
	od
}

init {
	atomic { run sender(0); run sender(1); run sleeper() }
}
