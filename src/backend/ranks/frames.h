#pragma once
// What ranks of several processes say to each other, as bytes: frames, and the values in their bodies. Nothing that is
// read is trusted: lengths and types are checked before they are used. Numbers are little-endian, as on every machine
// that this is built for.

#include "base/error.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace nibble::backend {

enum class FrameType : uint32_t {
  // What the group says (process_group.h).
  kHello,    // what a rank says of itself
  kWelcome,  // it belongs to the group
  kRefused,  // it does not: why
  kPulse,    // somebody is there
  kEnd,      // the work is done
  kFailed,   // it is not, and will not be: why
  // Before the first step (followers.h).
  kLimits,   // of a step, and how many KV pages there are
  kCard,     // which one a rank has
  kGroupId,  // by which the cards meet
  kReady,    // a rank has its weights
  // What rank 0 tells the others (followers.h).
  kStep,  // a whole step with its draws
  kCopyPage,
  kDrawn,  // what rank 0 has drawn in the oldest step that was not told yet
  // What ranks exchange within a step (socket_transport.h).
  kDelta,      // [tokens, hidden] in the type that the backend computes with: a rank's part, and then the sum
  kLogitRows,  // [logit rows, the rank's vocabulary] in float
  kTokens,     // that rank 0 has drawn
};
inline constexpr std::array<std::string_view, 16> kFrameNames = {
    "hello",    "welcome", "refused", "pulse",     "end",   "failed", "limits",     "card",
    "group_id", "ready",   "step",    "copy_page", "drawn", "delta",  "logit_rows", "tokens"};
inline constexpr uint32_t kFrameTypes = kFrameNames.size();
[[nodiscard]] inline std::string_view name_of(FrameType type) { return kFrameNames.at(static_cast<size_t>(type)); }

struct Frame {
  FrameType type;
  std::vector<std::byte> body;
};

// Throws Error(kCorrupt) for another.
inline void require_type(const Frame& frame, FrameType want) {
  if (frame.type != want) throw Error(Code::kCorrupt, "want a {} frame, found {}", name_of(want), name_of(frame.type));
}

// What a frame begins with.
struct FrameHeader {
  static constexpr uint32_t kMagic = 0x4B52424E;  // "NBRK" as it lies in memory
  uint32_t magic = kMagic;
  uint32_t type = 0;
  uint64_t body_bytes = 0;
};
inline constexpr size_t kFrameHeaderBytes = 16;
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);
// The header and, behind it, the body, if any is given.
[[nodiscard]] inline std::vector<std::byte> frame_header(FrameType type, size_t body_bytes,
                                                         std::span<const std::byte> body = {}) {
  const FrameHeader header{.type = static_cast<uint32_t>(type), .body_bytes = body_bytes};
  std::vector<std::byte> bytes(kFrameHeaderBytes + body.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!body.empty()) std::memcpy(bytes.data() + kFrameHeaderBytes, body.data(), body.size());
  return bytes;
}
[[nodiscard]] inline std::vector<std::byte> framed(FrameType type, std::span<const std::byte> body) {
  return frame_header(type, body.size(), body);
}

// Frames out of the bytes of a connection, as they come.
class FrameReader {
 public:
  explicit FrameReader(size_t most_body_bytes) : most_body_bytes_(most_body_bytes) {}
  void allow(size_t most_body_bytes) { most_body_bytes_ = most_body_bytes; }
  void push(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  // The next whole one. Throws Error(kCorrupt) where the bytes are none.
  [[nodiscard]] std::optional<Frame> next() {
    if (bytes_.size() < kFrameHeaderBytes) return std::nullopt;
    FrameHeader header{};
    std::memcpy(&header, bytes_.data(), sizeof header);
    if (header.magic != FrameHeader::kMagic) throw Error(Code::kCorrupt, "want frames of nibble, found other bytes");
    if (header.type >= kFrameTypes)
      throw Error(Code::kCorrupt, "want a frame's type below {}, found {}", kFrameTypes, header.type);
    const auto type = static_cast<FrameType>(header.type);
    if (header.body_bytes > most_body_bytes_)
      throw Error(Code::kCorrupt, "{} frame: want at most {} bytes, found {}", name_of(type), most_body_bytes_,
                  header.body_bytes);
    const auto whole = kFrameHeaderBytes + static_cast<size_t>(header.body_bytes);
    if (bytes_.size() < whole) return std::nullopt;
    const auto begin = bytes_.begin() + kFrameHeaderBytes, end = bytes_.begin() + static_cast<std::ptrdiff_t>(whole);
    Frame frame{type, {begin, end}};
    bytes_.erase(bytes_.begin(), end);
    return frame;
  }

 private:
  size_t most_body_bytes_;
  std::vector<std::byte> bytes_;  // of frames not taken yet
};

template <class T>
concept Plain = std::is_trivially_copyable_v<T>;

// A body in the making.
class BodyWriter {
 public:
  template <Plain T>
  void number(T value) {
    put(&value, sizeof value);
  }
  template <Plain T>
  void array(std::span<const T> values) {
    number(static_cast<uint64_t>(values.size()));
    put(values.data(), values.size_bytes());
  }
  void text(std::string_view value) { array(std::span(value.data(), value.size())); }
  template <Plain T>
  void bare(std::span<const T> values) {  // whose reader knows how many they are
    put(values.data(), values.size_bytes());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void put(const void* from, size_t count) {
    const auto* const at = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), at, at + count);
  }
  std::vector<std::byte> bytes_;
};

// Reads what a BodyWriter wrote. All throw Error(kCorrupt) where it holds something else.
class BodyReader {
 public:
  explicit BodyReader(const Frame& frame) : type_(frame.type), left_(frame.body) {}

  template <Plain T>
  [[nodiscard]] T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  template <Plain T>
  [[nodiscard]] std::vector<T> bare(size_t count) {
    if (count > left_.size() / sizeof(T)) refuse(fmt::format("{} more values", count));
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), take(count * sizeof(T)).data(), count * sizeof(T));
    return values;
  }
  template <Plain T>
  [[nodiscard]] std::vector<T> array(size_t most) {
    const auto count = number<uint64_t>();
    if (count > most) refuse(fmt::format("at most {} values", most), fmt::format("{}", count));
    return bare<T>(static_cast<size_t>(count));
  }
  [[nodiscard]] std::string text(size_t most) {
    const std::vector<char> letters = array<char>(most);
    return {letters.begin(), letters.end()};
  }
  void end() const {  // nothing is left
    if (!left_.empty()) refuse("its end");
  }

 private:
  [[nodiscard]] std::span<const std::byte> take(size_t count) {
    if (count > left_.size()) refuse(fmt::format("{} more bytes", count));
    const std::span<const std::byte> taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  [[noreturn]] void refuse(std::string_view want, std::string_view found = "") const {
    throw Error(Code::kCorrupt, "{} frame: want {}, found {}", name_of(type_), want,
                found.empty() ? fmt::format("{} bytes", left_.size()) : std::string(found));
  }

  FrameType type_;
  std::span<const std::byte> left_;
};

}  // namespace nibble::backend
