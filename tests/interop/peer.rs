// peer.rs - a stock velo node that a test drives by lines on stdin; see README.md for the commands.
//
// The same source is built against each velo release that rvd must talk to. One line in, one line out;
// logs go to stderr. The end of stdin ends the process, so no peer outlives its test.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context as _, Result};
use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, BufReader};
use velo::discovery::{FilesystemPeerDiscovery, FilesystemRegistrationGuard};
use velo::observability::VeloMetrics;
use velo::rendezvous::rdma::RdmaConfig;
use velo::transports::tcp::TcpTransportBuilder;
use velo::transports::ucx::{UcxTransport, UcxTransportBuilder};
use velo::{Context, DataHandle, Handler, InstanceId, PeerInfo, ShutdownPolicy, Transport, Velo};

const PATH_COUNTER: &str = "velo_rendezvous_rdma_path_total";
const PING_TIMEOUT: Duration = Duration::from_secs(5);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
const TEXT_REPLY_MAX: usize = 200;

/// Byte i of the test pattern; peer.py and the C tests have the same formula.
fn pattern_byte(i: u64, seed: u64) -> u8 {
    (i.wrapping_mul(131))
        .wrapping_add((i >> 8).wrapping_mul(31))
        .wrapping_add((i >> 16).wrapping_mul(7))
        .wrapping_add(seed) as u8
}

fn pattern(len: usize, seed: u64) -> Bytes {
    (0..len as u64).map(|i| pattern_byte(i, seed)).collect()
}

fn matches_pattern(data: &[u8], seed: u64) -> bool {
    (0u64..).zip(data).all(|(i, &b)| b == pattern_byte(i, seed))
}

fn fnv1a(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// What the handler `len` answers: decimal length, a space, FNV-1a 64 as 16 hex digits.
fn len_reply(data: &[u8]) -> String {
    format!("{} {:016x}", data.len(), fnv1a(data))
}

fn verdict(good: bool) -> &'static str {
    if good {
        "ok"
    } else {
        "bad"
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // An answer is one line: error texts may hold line ends.
    let line = line.replace(['\n', '\r'], " ");
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

/// The words of one command, taken from the left.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Result<&'a str> {
        let rest = self.0.trim_start();
        if rest.is_empty() {
            bail!("missing {what}");
        }
        let (word, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        self.0 = rest;
        Ok(word)
    }

    fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T> {
        let word = self.next(what)?;
        word.parse().map_err(|_| anyhow!("bad {what}: {word}"))
    }

    fn handle(&mut self) -> Result<DataHandle> {
        Ok(DataHandle::from_u128(self.number("handle")?))
    }

    fn instance(&mut self) -> Result<InstanceId> {
        let word = self.next("instance")?;
        serde_json::from_value(word.into()).with_context(|| format!("bad instance: {word}"))
    }

    fn rest(&self) -> &'a str {
        self.0.trim()
    }
}

async fn run_get(velo: &Velo, w: &mut Words<'_>, release: bool) -> Result<String> {
    let handle = w.handle()?;
    let seed = w.number("seed")?;
    let started = Instant::now();
    let (data, lease) = velo.get(handle).await?;
    let us = started.elapsed().as_micros();
    if release {
        velo.release(handle, lease).await?;
    }
    let good = verdict(matches_pattern(&data, seed));
    Ok(format!("got {} {good} {lease} {us}", data.len()))
}

/// So many questions about one slot, so many of them open at once.
async fn run_metadata_rate(velo: &Arc<Velo>, w: &mut Words<'_>) -> Result<String> {
    let handle = w.handle()?;
    let number: usize = w.number("number")?;
    let open: usize = w.number("open")?;
    let started = Instant::now();
    let tasks: Vec<_> = (0..open)
        .map(|_| {
            let velo = Arc::clone(velo);
            tokio::spawn(async move {
                for _ in 0..number / open {
                    velo.metadata(handle).await?;
                }
                Ok::<(), anyhow::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let asked = (number / open * open) as f64;
    Ok(format!("rate {:.0}", asked / started.elapsed().as_secs_f64()))
}

/// The RDMA path where the node has one, into a buffer of its pool; then released.
async fn run_get_pinned(velo: &Velo, w: &mut Words<'_>) -> Result<String> {
    let handle = w.handle()?;
    let seed = w.number("seed")?;
    let started = Instant::now();
    let (data, lease) = velo.get_pinned(handle).await?;
    let us = started.elapsed().as_micros();
    let good = verdict(matches_pattern(&data, seed));
    let len = data.len();
    velo.release(handle, lease).await?;
    Ok(format!("got {len} {good} {lease} {us}"))
}

/// What the node itself counted: one word for each path and reason, `rdma/ok:3`.
fn path_counters(registry: &prometheus::Registry) -> String {
    let mut out = String::from("counters");
    for family in registry.gather() {
        if family.name() != PATH_COUNTER {
            continue;
        }
        for metric in family.get_metric() {
            let label = |name: &str| {
                let found = metric.get_label().iter().find(|l| l.name() == name);
                found.map(|l| l.value().to_string()).unwrap_or_default()
            };
            let (path, reason) = (label("path"), label("reason"));
            out += &format!(" {path}/{reason}:{}", metric.get_counter().value());
        }
    }
    out
}

async fn run_call(velo: &Velo, w: &mut Words<'_>) -> Result<String> {
    let instance = w.instance()?;
    let handler = w.next("handler")?;
    let len = w.number("len")?;
    let payload = pattern(len, w.number("seed")?);
    let call = velo.messenger().unary(handler)?;
    let reply: Bytes = call
        .raw_payload(payload.clone())
        .instance(instance)
        .send()
        .await?;

    let good = match handler {
        "echo" => verdict(reply == payload),
        "len" => verdict(reply == len_reply(&payload).as_bytes()),
        _ => "-",
    };
    let text = match std::str::from_utf8(&reply) {
        Ok(t) if handler != "echo" && t.len() <= TEXT_REPLY_MAX => format!(" {t}"),
        _ => String::new(),
    };
    Ok(format!("reply {} {good}{text}", reply.len()))
}

/// What the commands work on.
#[derive(Clone)]
struct Node {
    velo: Arc<Velo>,
    ucx: Option<Arc<UcxTransport>>,
    registry: prometheus::Registry,
    /// This node's entry in the discovery file; it goes with the last of them.
    _entry: Option<Arc<FilesystemRegistrationGuard>>,
}

async fn run_one(node: &Node, line: &str) -> Result<String> {
    let velo = &*node.velo;
    let mut w = Words(line);
    match w.next("command")? {
        "info" => Ok(peer_info_line(velo)?),
        "register" => {
            let peer: PeerInfo = serde_json::from_str(w.rest()).context("bad PeerInfo")?;
            velo.register_peer(peer)?;
            Ok("ok".into())
        }
        "put" => {
            let len = w.number("len")?;
            let handle = velo.register_data(pattern(len, w.number("seed")?));
            Ok(format!("handle {}", handle.as_u128()))
        }
        "put-pinned" => {
            let len = w.number("len")?;
            let data = pattern(len, w.number("seed")?);
            let handle = velo.register_data_pinned(&data).await;
            Ok(format!("handle {}", handle.as_u128()))
        }
        "metadata" => {
            let m = velo.metadata(w.handle()?).await?;
            Ok(format!("metadata {} {} {}", m.total_len, m.refcount, m.pinned))
        }
        "metadata-rate" => run_metadata_rate(&node.velo, &mut w).await,
        "get" => run_get(velo, &mut w, false).await,
        "get-release" => run_get(velo, &mut w, true).await,
        "get-pinned" => run_get_pinned(velo, &mut w).await,
        "counters" => Ok(path_counters(&node.registry)),
        "ping" => {
            let ucx = node.ucx.as_ref().context("no UCX here")?;
            ucx.check_health(w.instance()?, PING_TIMEOUT)
                .await
                .map_err(|e| anyhow!("{e:?}"))?;
            Ok("ok".into())
        }
        "ref" => {
            velo.ref_handle(w.handle()?).await?;
            Ok("ok".into())
        }
        "detach" => {
            velo.detach(w.handle()?, w.number("lease")?).await?;
            Ok("ok".into())
        }
        "release" => {
            velo.release(w.handle()?, w.number("lease")?).await?;
            Ok("ok".into())
        }
        "call" => run_call(velo, &mut w).await,
        "handlers" => {
            // Ask again each time: the cached list would hide what the peer says now.
            let instance = w.instance()?;
            velo.messenger().refresh_handlers(instance).await?;
            let mut names = velo.messenger().available_handlers(instance).await?;
            names.sort();
            Ok(format!("handlers {}", names.join(" ")))
        }
        "gate" => {
            velo.begin_drain();
            Ok("ok".into())
        }
        other => bail!("unknown command {other}"),
    }
}

fn peer_info_line(velo: &Velo) -> Result<String> {
    Ok(format!("peer-info {}", serde_json::to_string(&velo.peer_info())?))
}

fn register_handlers(velo: &Velo) -> Result<()> {
    let echo = Handler::unary_handler("echo", |c: Context| Ok(Some(c.payload)));
    let len = Handler::unary_handler("len", |c: Context| Ok(Some(len_reply(&c.payload).into())));
    velo.messenger().register_handler(echo.build())?;
    velo.messenger().register_handler(len.build())
}

fn start_log() {
    let level = std::env::var("VELO_PEER_LOG").unwrap_or_default();
    let level = level.parse().unwrap_or(tracing::Level::WARN);
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(level)
        .init();
}

/// Empty arenas go back at once: a test that moves 64 MiB many times stays within the default budget.
fn rdma_config() -> RdmaConfig {
    let mut config = RdmaConfig::default();
    config.pool.arena_reclaim_after = Some(Duration::from_millis(100));
    let lease = std::env::var("VELO_PEER_LEASE_MS").ok();
    if let Some(ms) = lease.and_then(|ms| ms.parse().ok()) {
        config.rendezvous.lease_timeout = Duration::from_millis(ms);
    }
    config
}

/// Transports in the order of VELO_PEER_TRANSPORTS: the first that a peer has carries its messages.
async fn start_node() -> Result<Node> {
    let order = std::env::var("VELO_PEER_TRANSPORTS").unwrap_or_else(|_| "tcp".into());
    let registry = prometheus::Registry::new();
    let mut builder = Velo::builder()
        .stream_bind_addr(IpAddr::V4(Ipv4Addr::LOCALHOST))
        .metrics(Arc::new(VeloMetrics::register(&registry)?));
    let mut ucx = None;
    let discovery = match std::env::var("VELO_PEER_DISCOVERY") {
        Ok(path) => Some(Arc::new(FilesystemPeerDiscovery::new(path)?)),
        Err(_) => None,
    };
    if let Some(file) = &discovery {
        builder = builder.discovery(file.clone());
    }
    for name in order.split(',') {
        builder = match name {
            "tcp" => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                let tcp = TcpTransportBuilder::new().from_listener(listener)?.build()?;
                builder.add_transport(Arc::new(tcp))
            }
            "ucx" => {
                let transport = Arc::new(UcxTransportBuilder::new().build()?);
                ucx = Some(transport.clone());
                builder.add_ucx_transport(transport).rdma_config(rdma_config())
            }
            other => bail!("VELO_PEER_TRANSPORTS: {other}"),
        };
    }
    let velo: Arc<Velo> = builder.build().await?.into(); // 0.12 gives an Arc, 0.21 a handle
    let entry = match &discovery {
        Some(file) => Some(Arc::new(file.register_peer_info(&velo.peer_info()).await?)),
        None => None,
    };
    Ok(Node {
        velo,
        ucx,
        registry,
        _entry: entry,
    })
}

#[tokio::main]
async fn main() -> Result<()> {
    start_log();
    let node = start_node().await?;
    let velo = node.velo.clone();
    register_handlers(&velo)?;
    say(&peer_info_line(&velo)?);

    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.trim() {
            "quit" => break,
            "drain" => {
                velo.graceful_shutdown(ShutdownPolicy::Timeout(DRAIN_TIMEOUT))
                    .await;
                say("ok");
                break;
            }
            _ => {}
        }
        // A task of its own: a panic inside the library becomes an answer.
        let task_node = node.clone();
        let task = tokio::spawn(async move { run_one(&task_node, &line).await });
        let abort = task.abort_handle();
        match tokio::time::timeout(COMMAND_TIMEOUT, task).await {
            Ok(Ok(Ok(answer))) => say(&answer),
            Ok(Ok(Err(e))) => say(&format!("err {e:#}")),
            Ok(Err(_)) => say("err panicked"),
            Err(_) => {
                abort.abort();
                say("err timeout");
            }
        }
    }
    std::process::exit(0);
}
