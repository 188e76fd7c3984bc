/*
 * A reader that rests and a writer that wakes it (control/local/shmq.c), checked by Spin.
 *
 * Frames go through the queue while the reader looks and through the socket while it rests; the writer that finds it
 * resting once a frame is in the queue rings a bell through the socket. Both ends' stores wait in a buffer that memory
 * drains at any time, or a fence, or a system call.
 *
 *   no end state with a frame that was not taken             spin -run -DSAFETY -DNOCLAIM
 *   without FENCE the check must find the lost wake-up       the test runs it both ways
 */
#ifndef NO_FENCE
#define FENCE(b) (!(b))
#else
#define FENCE(b) true
#endif

#define FRAMES 4

mtype = { FRAME, BELL };
chan sock = [2 * FRAMES] of { mtype };

byte tail;        /* frames put, as memory has it */
bool rests = true;
byte taken;       /* of the queue */
byte served;      /* either way */

bool tail_buf;    /* the writer's store is still in its buffer */
byte rests_buf;   /* the reader's store of `rests`: 0 none, 1 to clear, 2 to set */

/* Memory takes a buffered store whenever it likes. */
active proctype memory()
{
end:
	do
	:: atomic { tail_buf -> tail++; tail_buf = false }
	:: atomic { rests_buf -> rests = (rests_buf == 2); rests_buf = 0 }
	od
}

active proctype writer()
{
	byte i;

	do
	:: i == FRAMES -> break
	:: else ->
		i++;
		if
		:: rests ->
			(!tail_buf);             /* a system call */
			sock ! FRAME
		:: else ->
			(!tail_buf);
			tail_buf = true;         /* rv_shmq_put */
			FENCE(tail_buf);
			if
			:: rests ->
				(!tail_buf);
				sock ! BELL
			:: else
			fi
		fi
	od
}

inline take_queue()
{
	do
	:: atomic { taken < tail -> taken++; served++ }
	:: taken >= tail -> break
	od
}

inline take_socket()
{
	mtype m;

	sock ? m;
	if
	:: m == FRAME -> served++
	:: else
	fi
}

active proctype reader()
{
	do
	:: served == FRAMES -> break
	:: else ->
		rests_buf = 1;                   /* rv_shmq_look */
		take_queue();
		if
		:: nempty(sock) -> take_socket()
		:: true
		fi;
		take_queue();
		rests_buf = 2;                   /* rv_shmq_rest */
		FENCE(rests_buf);
		if
		:: taken < tail -> take_queue()
		:: taken >= tail && served == FRAMES
		:: taken >= tail && served < FRAMES -> take_socket()  /* sleeps at the socket */
		fi
	od
}
