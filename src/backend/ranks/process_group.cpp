#include "backend/ranks/process_group.h"

#include "base/error.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace nibble::backend {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::use_awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using boost::system::system_error;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint32_t kProtocol = 3;  // what frames mean; a rank that speaks another is refused
constexpr milliseconds kPulseTime{1000}, kSilence{8000}, kTick{100};
constexpr milliseconds kHelloTime{5000};  // for whoever connects to say who it is
constexpr milliseconds kRetry{200}, kConnectTime{2000};
constexpr milliseconds kReasonTime{500};  // for the last frame of who has closed its connection
constexpr size_t kMostHelloBytes = size_t{64} << 10, kMostBodyBytes = size_t{1} << 32;
constexpr size_t kMostTerms = 64;
constexpr size_t kMostStrangers = 64;  // who have not said who they are; the oldest makes room
constexpr int kMostNoted = 20;         // of those that are no rank

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

double seconds(milliseconds time) { return static_cast<double>(time.count()) / 1000; }

// Another rank, or who may become one. A thread of the group reads it, any writes.
struct Peer {
  Peer(tcp::socket of, std::string from) : socket(std::move(of)), where(std::move(from)) {}
  void connected() {
    error_code ignored;  // of one that has gone already: whoever reads it will see
    socket.non_blocking(true, ignored);
    socket.set_option(tcp::no_delay(true), ignored);  // frames are short messages that somebody waits for
  }
  // Whether it takes something within that time.
  [[nodiscard]] bool takes(milliseconds time) {
    pollfd waited{.fd = socket.native_handle(), .events = POLLOUT, .revents = 0};
    return poll(&waited, 1, static_cast<int>(time.count())) > 0;
  }
  // How many bytes go out at once; none: the connection is closed.
  [[nodiscard]] std::optional<size_t> write(std::span<const std::byte> bytes) {
    error_code failed;
    const size_t count = socket.write_some(asio::buffer(bytes.data(), bytes.size()), failed);
    if (failed && failed != asio::error::would_block) return std::nullopt;
    return count;
  }
  void shut() { shutdown(socket.native_handle(), SHUT_RDWR); }  // whoever reads or writes it finds its end

  tcp::socket socket;
  const std::string where;
  const Clock::time_point came = Clock::now();
  Clock::time_point heard = came;
  std::mutex sending;       // frames go out whole
  std::deque<Frame> inbox;  // guarded by the group's mutex
  bool closed = false;      // the watcher's: it is not read any more
  bool cut = false;         // in the middle of a frame, guarded by sending: nothing can follow
};

// Where it takes a short frame at once; never waits.
void send_now(Peer& peer, FrameType type, std::span<const std::byte> body = {}) {
  const std::unique_lock lock(peer.sending, std::try_to_lock);  // who holds it sends something else
  if (lock && peer.takes(milliseconds(0))) static_cast<void>(peer.write(framed(type, body)));
}

// Its last frame. Whoever sends another one gives up soon: the group is lost.
void send_last(Peer& peer, std::string_view why) {
  const std::lock_guard lock(peer.sending);
  if (!peer.cut) static_cast<void>(peer.write(framed(FrameType::kFailed, bytes_of(why))));
  peer.cut = true;
}

// Throw system_error where the connection is closed, and what read_header() throws.
awaitable<void> fill(Peer& peer, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const asio::mutable_buffer into(bytes.data(), bytes.size());
    const size_t count = co_await peer.socket.async_read_some(into, use_awaitable);
    peer.heard = Clock::now();
    bytes = bytes.subspan(count);
  }
}
awaitable<Frame> read_frame(Peer& peer, size_t most_body_bytes) {
  std::array<std::byte, kFrameHeaderBytes> bytes{};
  co_await fill(peer, bytes);
  const FrameHeader header = read_header(bytes, most_body_bytes);
  Frame frame{static_cast<FrameType>(header.type), std::vector<std::byte>(header.body_bytes)};
  co_await fill(peer, frame.body);
  co_return frame;
}

std::vector<std::byte> hello_of(const GroupPlace& place) {
  BodyWriter hello;
  hello.field(kProtocol);
  hello.field(static_cast<int32_t>(place.rank));
  hello.field(static_cast<int32_t>(place.count));
  hello.field(static_cast<uint32_t>(place.terms.size()));
  for (const GroupTerm& term : place.terms) {
    hello.text(term.name);
    hello.text(term.value);
  }
  return {hello.bytes().begin(), hello.bytes().end()};
}

// What a hello says; of another protocol nothing but that.
struct Hello {
  uint32_t protocol = 0;
  int32_t rank = 0, count = 0;
  std::vector<GroupTerm> terms;
};
Hello read_hello(const Frame& frame) {
  BodyReader in(frame);
  Hello hello;
  hello.protocol = in.number<uint32_t>();
  if (hello.protocol != kProtocol) return hello;
  hello.rank = in.number<int32_t>();
  hello.count = in.number<int32_t>();
  const auto terms = in.number<uint32_t>();
  for (uint32_t i = 0; i < std::min<size_t>(terms, kMostTerms); ++i) {
    std::string name = in.text(kMostText);
    hello.terms.push_back({std::move(name), in.text(kMostText)});
  }
  in.end();
  return hello;
}

// Why not; empty: it may come.
std::string misfit(const Hello& hello, const GroupPlace& place) {
  if (hello.protocol != kProtocol)
    return fmt::format("version: want protocol {} as on rank 0, found {}", kProtocol, hello.protocol);
  if (hello.count != place.count)
    return fmt::format("number of ranks: want {} as on rank 0, found {}", place.count, hello.count);
  if (hello.rank < 1 || hello.rank >= place.count)
    return fmt::format("rank: want 1 to {}, found {}", place.count - 1, hello.rank);
  for (size_t i = 0; i < place.terms.size(); ++i) {
    const auto& [name, value] = place.terms[i];
    if (i >= hello.terms.size() || hello.terms[i].name != name) return fmt::format("{}: want it said", name);
    if (hello.terms[i].value != value)
      return fmt::format("{}: want {} as on rank 0, found {}", name, value, hello.terms[i].value);
  }
  return "";
}

}  // namespace

struct ProcessGroup::Impl {
  Impl(GroupPlace of, GroupEvents to) : place(std::move(of)), events(std::move(to)), peers(place.count) {}

  // All that the host means.
  [[nodiscard]] tcp::resolver::results_type first_endpoints() {
    error_code failed;
    auto found = tcp::resolver(io).resolve(place.first.host, std::to_string(place.first.port), failed);
    if (failed) throw Error(Code::kIo, "{}: no such address: {}", place.first.host, failed.message());
    return found;
  }
  void start(awaitable<void> work) { co_spawn(io, std::move(work), asio::detached); }
  void watch() {
    start(tick());
    watcher = std::jthread([this] { io.run(); });
  }

  // ---- of rank 0, before all have come ----
  void gather() {
    note(fmt::format("rank 0 of {}: waits at {} for the others", place.count, backend::text_of(listen())));
    start(accept_all());
    watch();
    std::unique_lock lock(mutex);
    if (changed.wait_for(lock, place.join_timeout, [this] { return complete; })) return;
    std::vector<int> missing;
    for (int r = 1; r < place.count; ++r)
      if (!peers[static_cast<size_t>(r)]) missing.push_back(r);
    const std::string refused = last_refusal.empty() ? "" : "; refused meanwhile: " + last_refusal;
    lock.unlock();
    throw_lost(fmt::format("rank{} {} did not come within {:g} s{}", missing.size() > 1 ? "s" : "",
                           fmt::join(missing, ", "), seconds(place.join_timeout), refused));
  }

  // On the host's address where that is one of this machine; else, as behind a name that several machines share, on
  // all.
  Address listen() {
    Address at = place.first;
    tcp::endpoint own = *first_endpoints().begin();
    error_code failed = try_listen(own);
    if (failed.value() == EADDRNOTAVAIL) {
      own.address(own.address().is_v6() ? asio::ip::address(asio::ip::address_v6::any()) : asio::ip::address_v4::any());
      at.host = own.address().to_string();
      failed = try_listen(own);
    }
    if (failed)
      throw Error(Code::kIo, "cannot listen on {} for the other ranks: {}", backend::text_of(at), failed.message());
    return at;
  }
  [[nodiscard]] error_code try_listen(const tcp::endpoint& at) {
    try {
      acceptor.emplace(io, at);  // which may take an address that was in use just now
      return {};
    } catch (const system_error& failed) {
      return failed.code();
    }
  }

  awaitable<void> accept_all() {
    asio::steady_timer pause(io);
    while (true) {
      error_code failed;
      tcp::socket socket = co_await acceptor->async_accept(asio::redirect_error(use_awaitable, failed));
      if (failed) {  // no file descriptor is left
        pause.expires_after(kTick);
        co_await pause.async_wait(use_awaitable);
        continue;
      }
      const tcp::endpoint from = socket.remote_endpoint(failed);
      if (strangers.size() == kMostStrangers) {
        strangers.front()->socket.close(failed);
        strangers.erase(strangers.begin());
      }
      strangers.push_back(
          std::make_shared<Peer>(std::move(socket), fmt::format("{}:{}", from.address().to_string(), from.port())));
      start(meet(strangers.back()));
    }
  }

  awaitable<void> meet(std::shared_ptr<Peer> stranger) {
    stranger->connected();
    try {
      const Frame frame = co_await read_frame(*stranger, kMostHelloBytes);
      greet(stranger, frame);
    } catch (const Error& error) {
      note_stranger(stranger->where, error.what());
    } catch (const system_error&) {  // it has gone, or was sent away
    }
    std::erase(strangers, stranger);
  }

  void greet(const std::shared_ptr<Peer>& stranger, const Frame& frame) {
    if (frame.type != FrameType::kHello)
      throw Error(Code::kCorrupt, "want a hello frame, found {}", name_of(frame.type));
    const Hello hello = read_hello(frame);
    std::string why = misfit(hello, place);
    std::unique_lock lock(mutex);
    const size_t rank = why.empty() ? static_cast<size_t>(hello.rank) : 0;
    if (why.empty() && peers[rank]) why = fmt::format("rank {} is there already, from {}", rank, peers[rank]->where);
    if (!why.empty()) {
      last_refusal = fmt::format("rank {} at {}: {}", hello.rank, stranger->where, why);
      lock.unlock();
      send_now(*stranger, FrameType::kRefused, bytes_of(why));
      return note("refused " + last_refusal);
    }
    send_now(*stranger, FrameType::kWelcome);
    note(fmt::format("rank {} of {} has come from {}", rank, place.count, stranger->where));
    peers[rank] = stranger;
    start(hear(rank, stranger));
    complete = std::all_of(peers.begin() + 1, peers.end(), [](const auto& peer) { return peer != nullptr; });
    changed.notify_all();
  }

  void note_stranger(const std::string& where, std::string_view why) {
    if (++strangers_noted <= kMostNoted) note(fmt::format("refused {}, which is no rank: {}", where, why));
  }

  // ---- of the others ----
  void come() {
    std::exception_ptr failed;
    co_spawn(io, ask_in(), [&failed](const std::exception_ptr& thrown) { failed = thrown; });
    io.run();
    if (failed) std::rethrow_exception(failed);
    io.restart();
    start(hear(0, peers[0]));
    watch();
  }

  awaitable<void> ask_in() {
    const auto deadline = Clock::now() + place.join_timeout;
    asio::steady_timer pause(io);
    std::string why;
    while (Clock::now() < deadline) {
      try {
        peers[0] = co_await ask_once(deadline);
      } catch (const system_error& failed) {
        why = failed.code() == asio::error::eof ? "it closed the connection" : failed.code().message();
      } catch (const Error& error) {
        if (error.code() == Code::kInvalidRequest) throw;
        why = error.what();
      }
      complete = peers[0] != nullptr;
      if (complete) co_return;
      pause.expires_after(kRetry);
      co_await pause.async_wait(use_awaitable);
    }
    throw Error(Code::kIo, "rank 0 did not answer at {} within {:g} s: {}", backend::text_of(place.first),
                seconds(place.join_timeout), why);
  }

  awaitable<std::shared_ptr<Peer>> ask_once(Clock::time_point deadline) {
    const tcp::resolver::results_type endpoints = first_endpoints();
    auto peer = std::make_shared<Peer>(tcp::socket(io), backend::text_of(place.first));
    asio::steady_timer limit(io);
    const auto within = [&](milliseconds time) {
      limit.expires_at(std::min(deadline, Clock::now() + time));
      limit.async_wait([peer](const error_code& stopped) {
        if (!stopped) peer->socket.close();
      });
    };
    within(kConnectTime);
    error_code failed;
    co_await asio::async_connect(peer->socket, endpoints, asio::redirect_error(use_awaitable, failed));
    // TCP connects a port to itself where nobody listens there yet and the system chose it for the caller: rank 0 could
    // not have it then.
    if (!failed && peer->socket.local_endpoint() == peer->socket.remote_endpoint())
      failed = asio::error::connection_refused;
    if (failed) throw system_error(failed == asio::error::operation_aborted ? asio::error::timed_out : failed);
    peer->connected();
    send_now(*peer, FrameType::kHello, hello_of(place));
    within(kHelloTime);
    const Frame frame = co_await read_frame(*peer, kMostHelloBytes);
    if (frame.type == FrameType::kRefused)
      throw Error(Code::kInvalidRequest, "rank {} is refused by rank 0 at {}: {}", place.rank, peer->where,
                  text_of(frame));
    require_type(frame, FrameType::kWelcome);
    co_return peer;
  }

  // ---- on the thread that reads ----
  awaitable<void> hear(size_t rank, std::shared_ptr<Peer> peer) {
    std::string why = "its connection was closed";
    try {
      while (true) {
        Frame frame = co_await read_frame(*peer, kMostBodyBytes);
        take(*peer, std::move(frame));
      }
    } catch (const system_error&) {  // closed
    } catch (const std::exception& error) {
      why = error.what();
    }
    leave(rank, peer, why);
  }

  awaitable<void> tick() {
    asio::steady_timer timer(io);
    for (auto next_pulse = Clock::now();;) {
      for (const std::shared_ptr<Peer>& stranger : strangers) {
        if (Clock::now() - stranger->came <= kHelloTime || !stranger->socket.is_open()) continue;
        note_stranger(stranger->where, "it does not say what it is");
        stranger->socket.close();
      }
      const bool pulses = Clock::now() >= next_pulse;
      if (pulses) next_pulse = Clock::now() + kPulseTime;
      for (size_t rank = 0; rank < peers.size(); ++rank) {
        const std::shared_ptr<Peer> peer = peers[rank];
        if (!peer || peer->closed) continue;
        if (pulses) send_now(*peer, FrameType::kPulse);
        if (Clock::now() - peer->heard > kSilence)
          leave(rank, peer, fmt::format("silent for {:g} s", seconds(kSilence)));
      }
      timer.expires_after(kTick);
      co_await timer.async_wait(use_awaitable);
    }
  }

  void take(Peer& peer, Frame frame) {
    const bool ends = frame.type == FrameType::kEnd && place.rank > 0;
    if (frame.type == FrameType::kPulse) return;
    if (frame.type == FrameType::kFailed) throw Error(Code::kIo, "it ended: {}", text_of(frame));
    if (frame.type < FrameType::kLimits && !ends)
      throw Error(Code::kCorrupt, "want frames of the work, found {}", name_of(frame.type));
    const std::lock_guard lock(mutex);
    ended = ended || ends;
    peer.inbox.push_back(std::move(frame));
    changed.notify_all();
  }

  void leave(size_t rank, const std::shared_ptr<Peer>& peer, std::string_view why) {
    if (std::exchange(peer->closed, true)) return;
    const std::string text = fmt::format("rank {} at {} is gone: {}", rank, peer->where, why);
    std::unique_lock lock(mutex);
    if (ended) return;
    if (!complete) {  // it, or another, may come again
      peers[rank].reset();
      peer->shut();
      lock.unlock();
      note(text);
    } else {
      lock.unlock();
      lose(text);
    }
  }

  void lose(const std::string& why) {
    {
      const std::lock_guard lock(mutex);
      if (lost || ended) return;
      failure = why;
      lost = true;
      for (const auto& peer : peers) {
        if (!peer) continue;
        send_last(*peer, why);
        peer->shut();
      }
      changed.notify_all();
    }
    io.stop();
    if (events.lost) events.lost(why);
  }

  // ---- for the thread that works ----
  [[noreturn]] void throw_lost(const std::string& why) {
    lose(why);
    const std::lock_guard lock(mutex);
    throw Error(Code::kIo, failure.empty() ? "the group of ranks has ended" : failure);
  }

  // How many bytes went out: all, unless the connection is closed or the group is lost.
  [[nodiscard]] size_t write_all(Peer& peer, std::span<const std::byte> bytes) const {
    size_t done = 0;
    while (done < bytes.size()) {
      const std::optional<size_t> count = lost ? std::nullopt : peer.write(bytes.subspan(done));
      if (!count) break;
      done += *count;
      if (*count == 0) static_cast<void>(peer.takes(kTick));
    }
    return done;
  }

  // False: it did not go out as a whole.
  [[nodiscard]] bool write_frame(Peer& peer, FrameType type, std::span<const std::byte> body) const {
    constexpr size_t kCopied = size_t{64} << 10;  // so that a short frame is one packet
    const bool is_short = body.size() <= kCopied;
    const std::vector<std::byte> first = is_short ? framed(type, body) : frame_header(type, body.size());
    const std::lock_guard lock(peer.sending);
    size_t done = write_all(peer, first);
    if (!is_short && done == first.size()) done += write_all(peer, body);
    const bool whole = done == kFrameHeaderBytes + body.size();
    peer.cut = peer.cut || (done > 0 && !whole);
    return whole;
  }

  void note(const std::string& text) const {
    if (events.note) events.note(text);
  }

  const GroupPlace place;
  const GroupEvents events;
  const int exceptions = std::uncaught_exceptions();
  asio::io_context io{1};                 // its work is done on the watcher's thread
  std::optional<tcp::acceptor> acceptor;  // of rank 0
  std::mutex mutex;
  std::condition_variable changed;
  // By rank; none: itself, or not known. The watcher alone changes it; once complete it stays.
  std::vector<std::shared_ptr<Peer>> peers;
  bool complete = false;  // guarded by mutex, as are the next three
  bool ended = false;
  std::string failure;
  std::string last_refusal;
  std::atomic<bool> lost = false;
  std::vector<std::shared_ptr<Peer>> strangers;  // the watcher's
  int strangers_noted = 0;
  std::jthread watcher;  // last: it uses all of the above
};

ProcessGroup::ProcessGroup(GroupPlace place, GroupEvents events)
    : impl_(std::make_unique<Impl>(std::move(place), std::move(events))) {
  check(impl_->place.count > 1 && impl_->place.rank >= 0 && impl_->place.rank < impl_->place.count,
        "a group has several ranks");
  try {
    impl_->place.rank == 0 ? impl_->gather() : impl_->come();
  } catch (...) {
    impl_->io.stop();
    throw;
  }
}

ProcessGroup::~ProcessGroup() {
  if (std::uncaught_exceptions() > impl_->exceptions)
    fail("it met an error");
  else
    end();
  impl_->io.stop();
}

std::string text_of(const Address& address) { return fmt::format("{}:{}", address.host, address.port); }

int ProcessGroup::rank() const { return impl_->place.rank; }
int ProcessGroup::count() const { return impl_->place.count; }

void ProcessGroup::send(int rank, FrameType type, std::span<const std::byte> body) {
  Peer& peer = *impl_->peers[static_cast<size_t>(rank)];
  if (impl_->write_frame(peer, type, body)) return;
  static_cast<void>(lost_within(kReasonTime));  // what it said last may be on its way to the watcher
  impl_->throw_lost(fmt::format("rank {} at {} is gone: its connection was closed", rank, peer.where));
}

void ProcessGroup::tell(FrameType type, std::span<const std::byte> body) {
  for (int r = 1; r < count(); ++r) send(r, type, body);
}

Frame ProcessGroup::receive(int rank) {
  constexpr std::chrono::hours kEver{24 * 365};
  return *receive_within(rank, kEver);
}

std::optional<Frame> ProcessGroup::receive_within(int rank, milliseconds time) {
  Impl& own = *impl_;
  std::unique_lock lock(own.mutex);
  std::deque<Frame>& inbox = own.peers[static_cast<size_t>(rank)]->inbox;
  if (!own.changed.wait_for(lock, time, [&] { return !inbox.empty() || own.lost || own.ended; })) return std::nullopt;
  if (inbox.empty()) throw Error(Code::kIo, own.lost ? own.failure : "the group of ranks has ended");
  Frame frame = std::move(inbox.front());
  inbox.pop_front();
  return frame;
}

bool ProcessGroup::ended() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->ended;
}

void ProcessGroup::require() const {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->lost) throw Error(Code::kIo, impl_->failure);
}

bool ProcessGroup::lost_within(milliseconds time) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, time, [&] { return impl_->lost.load(); });
}

void ProcessGroup::end() {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->lost || std::exchange(impl_->ended, true)) return;
  }
  if (rank() > 0) return;
  for (int r = 1; r < count(); ++r) {
    try {
      send(r, FrameType::kEnd);
    } catch (const Error&) {  // it has gone already
    }
  }
}

void ProcessGroup::fail(const std::string& why) { impl_->lose(why); }

}  // namespace nibble::backend
