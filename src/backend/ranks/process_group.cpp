#include "backend/ranks/process_group.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace nibble::backend {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint32_t kProtocol = 2;  // what frames mean; a rank that speaks another is refused
constexpr milliseconds kPulseTime{1000}, kSilence{8000}, kTick{100};
constexpr milliseconds kHelloTime{5000};  // for whoever connects to say who it is
constexpr milliseconds kRetry{200}, kConnectTime{2000};
constexpr milliseconds kReasonTime{500};  // for the last frame of who has closed its connection
constexpr size_t kMostHelloBytes = size_t{64} << 10, kMostBodyBytes = size_t{1} << 32;
constexpr size_t kMostTerms = 64, kMostText = 4096;
constexpr size_t kMostStrangers = 64;  // who have not said who they are; the oldest makes room
constexpr int kMostNoted = 20;         // of those that are no rank

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string text_of(const Frame& frame) {
  std::string text(reinterpret_cast<const char*>(frame.body.data()), std::min(frame.body.size(), kMostText));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  return text;
}

double seconds(milliseconds time) { return static_cast<double>(time.count()) / 1000; }

// Another rank, or who may become one.
struct Peer {
  Peer(Socket of, std::string from) : socket(std::move(of)), where(std::move(from)), in(kMostHelloBytes) {}
  Socket socket;
  std::string where;
  FrameReader in;
  Clock::time_point heard = Clock::now();
  std::mutex sending;       // frames go out whole
  std::deque<Frame> inbox;  // guarded by the group's mutex
  bool closed = false;      // once the group has ended
  bool cut = false;         // in the middle of a frame, guarded by sending: nothing can follow
};

// Where it takes a short frame at once; never waits.
void send_now(Peer& peer, FrameType type, std::span<const std::byte> body = {}) {
  const std::unique_lock lock(peer.sending, std::try_to_lock);  // who holds it sends something else
  if (lock && wait_until(peer.socket, Ready::kToWrite, milliseconds(0)))
    static_cast<void>(write_some(peer.socket, framed(type, body)));
}

// Its last frame. Whoever sends another one gives up soon: the group is lost.
void send_last(Peer& peer, std::string_view why) {
  const std::lock_guard lock(peer.sending);
  if (!peer.cut) static_cast<void>(write_some(peer.socket, framed(FrameType::kFailed, bytes_of(why))));
  peer.cut = true;
}

// `use` gets every whole frame until it returns false. False: the connection is closed. Throws what FrameReader throws.
template <class Use>
bool read_frames(Peer& peer, std::span<std::byte> buffer, const Use& use) {
  const ReadResult got = read_some(peer.socket, buffer);
  if (got.state == ReadState::kSome) {
    peer.heard = Clock::now();
    peer.in.push(buffer.first(got.count));
  }
  while (std::optional<Frame> frame = peer.in.next())
    if (!use(std::move(*frame))) break;
  return got.state != ReadState::kClosed;
}

std::vector<std::byte> hello_of(const GroupPlace& place) {
  BodyWriter hello;
  hello.number(kProtocol);
  hello.number(static_cast<int32_t>(place.rank));
  hello.number(static_cast<int32_t>(place.count));
  hello.number(static_cast<uint32_t>(place.terms.size()));
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
  Impl(GroupPlace of, GroupEvents to) : place(std::move(of)), events(std::move(to)), peers(place.count) {
    wake = Socket(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    check(wake.fd() >= 0, "no file descriptor is left");
  }

  // ---- of rank 0, before all have come ----
  void gather() {
    listener.emplace(listen_at(place.first));
    note(fmt::format("rank 0 of {}: waits at {} for the others", place.count, backend::text_of(listener->at)));
    watcher = std::jthread([this] { watch(); });
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

  void meet_strangers(std::span<std::byte> buffer) {
    while (std::optional<Accepted> came = accept_one(listener->socket)) {
      if (strangers.size() == kMostStrangers) strangers.erase(strangers.begin());
      strangers.push_back(std::make_unique<Peer>(std::move(came->socket), std::move(came->from)));
    }
    std::erase_if(strangers, [&](std::unique_ptr<Peer>& stranger) {
      const Clock::time_point came = stranger->heard;
      bool done = false;
      try {
        const bool open = read_frames(*stranger, buffer, [&](const Frame& frame) {
          done = true;
          greet(stranger, frame);
          return false;  // what comes after it is read with the group's
        });
        if (!stranger) return true;  // it has come in
        stranger->heard = came;
        if (!done && Clock::now() - came > kHelloTime) note_stranger(stranger->where, "it does not say what it is");
        return done || !open || Clock::now() - came > kHelloTime;
      } catch (const Error& error) {
        note_stranger(stranger->where, error.what());
        return true;
      }
    });
  }

  void greet(std::unique_ptr<Peer>& stranger, const Frame& frame) {
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
    stranger->in.allow(kMostBodyBytes);
    peers[rank] = std::move(stranger);
    complete = std::all_of(peers.begin() + 1, peers.end(), [](const auto& peer) { return peer != nullptr; });
    changed.notify_all();
  }

  void note_stranger(const std::string& where, std::string_view why) {
    if (++strangers_noted <= kMostNoted) note(fmt::format("refused {}, which is no rank: {}", where, why));
  }

  // ---- of the others ----
  void come() {
    const auto deadline = Clock::now() + place.join_timeout;
    const std::string at = backend::text_of(place.first);
    std::string why;
    while (Clock::now() < deadline) {
      try {
        if (ask_in(deadline)) {
          watcher = std::jthread([this] { watch(); });
          return;
        }
        why = "it closed the connection";
      } catch (const Error& error) {
        if (error.code() == Code::kInvalidRequest) throw;
        why = error.what();
      }
      std::this_thread::sleep_for(kRetry);
    }
    throw Error(Code::kIo, "rank 0 did not answer at {} within {:g} s: {}", at, seconds(place.join_timeout), why);
  }

  // False: nobody answered.
  bool ask_in(Clock::time_point deadline) {
    auto peer = std::make_unique<Peer>(connect_to(place.first, kConnectTime), backend::text_of(place.first));
    send_now(*peer, FrameType::kHello, hello_of(place));
    std::array<std::byte, 4096> buffer{};
    bool welcome = false;
    const auto until = std::min(deadline, Clock::now() + kHelloTime);
    for (bool open = true; open && !welcome && Clock::now() < until;) {
      static_cast<void>(wait_until(peer->socket, Ready::kToRead, kTick));
      open = read_frames(*peer, buffer, [&](const Frame& frame) {
        if (frame.type == FrameType::kRefused)
          throw Error(Code::kInvalidRequest, "rank {} is refused by rank 0 at {}: {}", place.rank, peer->where,
                      text_of(frame));
        welcome = frame.type == FrameType::kWelcome;
        return false;
      });
    }
    if (!welcome) return false;
    peer->in.allow(kMostBodyBytes);
    peers[0] = std::move(peer);
    complete = true;
    return true;
  }

  // ---- the thread that reads ----
  void watch() {
    std::vector<std::byte> buffer(size_t{256} << 10);
    for (auto next_pulse = Clock::now(); !stopping && !lost;) {
      wait_for_bytes();
      if (listener) meet_strangers(buffer);
      for (size_t rank = 0; rank < peers.size(); ++rank)
        if (peers[rank] && !peers[rank]->closed) hear(rank, buffer);
      if (Clock::now() < next_pulse) continue;
      next_pulse = Clock::now() + kPulseTime;
      for (const auto& peer : peers)
        if (peer && !peer->closed) send_now(*peer, FrameType::kPulse);
    }
  }

  void wait_for_bytes() const {
    std::vector<pollfd> waited;
    const auto add = [&waited](const Socket& socket) {
      waited.push_back({.fd = socket.fd(), .events = POLLIN, .revents = 0});
    };
    add(wake);
    if (listener) add(listener->socket);
    for (const auto& stranger : strangers) add(stranger->socket);
    for (const auto& peer : peers)
      if (peer && !peer->closed) add(peer->socket);
    poll(waited.data(), waited.size(), static_cast<int>(kTick.count()));
  }

  void hear(size_t rank, std::span<std::byte> buffer) {
    Peer& peer = *peers[rank];
    try {
      const bool open = read_frames(peer, buffer, [&](Frame frame) { return take(rank, std::move(frame)); });
      if (!open) return leave(rank, "its connection was closed");
      if (Clock::now() - peer.heard > kSilence) leave(rank, fmt::format("silent for {:g} s", seconds(kSilence)));
    } catch (const std::exception& error) {
      leave(rank, error.what());
    }
  }

  // False: no more is wanted.
  bool take(size_t rank, Frame frame) {
    const bool ends = frame.type == FrameType::kEnd && place.rank > 0;
    if (frame.type == FrameType::kPulse) return true;
    if (frame.type == FrameType::kFailed) throw Error(Code::kIo, "it ended: {}", text_of(frame));
    if (frame.type < FrameType::kLimits && !ends)
      throw Error(Code::kCorrupt, "want frames of the work, found {}", name_of(frame.type));
    const std::lock_guard lock(mutex);
    ended = ended || ends;
    peers[rank]->inbox.push_back(std::move(frame));
    changed.notify_all();
    return !ends;
  }

  void leave(size_t rank, std::string_view why) {
    const std::string text = fmt::format("rank {} at {} is gone: {}", rank, peers[rank]->where, why);
    std::unique_lock lock(mutex);
    if (ended) {
      peers[rank]->closed = true;
    } else if (!complete) {  // it, or another, may come again
      peers[rank].reset();
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
        peer->socket.shut();
      }
      changed.notify_all();
    }
    if (events.lost) events.lost(why);
  }

  // ---- for the thread that works ----
  [[noreturn]] void throw_lost(const std::string& why) {
    lose(why);
    const std::lock_guard lock(mutex);
    throw Error(Code::kIo, failure.empty() ? "the group of ranks has ended" : failure);
  }

  // Under the mutex, as the next.
  [[nodiscard]] bool has_news(const std::deque<Frame>& inbox) const { return !inbox.empty() || lost || ended; }
  [[nodiscard]] Frame first_of(std::deque<Frame>& inbox) const {
    if (inbox.empty()) throw Error(Code::kIo, lost ? failure : "the group of ranks has ended");
    Frame frame = std::move(inbox.front());
    inbox.pop_front();
    return frame;
  }

  // How many bytes went out: all, unless the connection is closed or the group is lost.
  [[nodiscard]] size_t write_all(const Peer& peer, std::span<const std::byte> bytes) const {
    size_t done = 0;
    while (done < bytes.size()) {
      const std::optional<size_t> count = lost ? std::nullopt : write_some(peer.socket, bytes.subspan(done));
      if (!count) break;
      done += *count;
      if (*count == 0) static_cast<void>(wait_until(peer.socket, Ready::kToWrite, kTick));
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
  Socket wake;
  std::optional<Listener> listener;  // of rank 0
  std::mutex mutex;
  std::condition_variable changed;
  // By rank; none: itself, or not known. The watcher alone changes it; once complete it stays.
  std::vector<std::unique_ptr<Peer>> peers;
  bool complete = false;  // guarded by mutex, as are the next three
  bool ended = false;
  std::string failure;
  std::string last_refusal;
  std::atomic<bool> lost = false, stopping = false;
  std::vector<std::unique_ptr<Peer>> strangers;  // the watcher's
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
    impl_->stopping = true;
    throw;
  }
}

ProcessGroup::~ProcessGroup() {
  if (std::uncaught_exceptions() > impl_->exceptions)
    fail("it met an error");
  else
    end();
  impl_->stopping = true;
  eventfd_write(impl_->wake.fd(), 1);
}

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
  std::unique_lock lock(impl_->mutex);
  std::deque<Frame>& inbox = impl_->peers[static_cast<size_t>(rank)]->inbox;
  impl_->changed.wait(lock, [&] { return impl_->has_news(inbox); });
  return impl_->first_of(inbox);
}

std::optional<Frame> ProcessGroup::receive_within(int rank, milliseconds time) {
  std::unique_lock lock(impl_->mutex);
  std::deque<Frame>& inbox = impl_->peers[static_cast<size_t>(rank)]->inbox;
  if (!impl_->changed.wait_for(lock, time, [&] { return impl_->has_news(inbox); })) return std::nullopt;
  return impl_->first_of(inbox);
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
