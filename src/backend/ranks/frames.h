#pragma once
// What ranks of several processes say to each other, as bytes: frames, and the values in their bodies. Nothing that is
// read is trusted: lengths and types are checked before they are used. Numbers are little-endian, as on every machine
// that this is built for.

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

// A body that is text, for people.
inline constexpr size_t kMostText = 4096;
[[nodiscard]] inline std::string text_of(const Frame& frame) {
  std::string text(reinterpret_cast<const char*>(frame.body.data()), std::min(frame.body.size(), kMostText));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  return text;
}

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

// Throws Error(kCorrupt) where these bytes begin no frame whose body is that short.
[[nodiscard]] inline FrameHeader read_header(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                             size_t most_body_bytes) {
  FrameHeader header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != FrameHeader::kMagic) throw Error(Code::kCorrupt, "want frames of nibble, found other bytes");
  if (header.type >= kFrameTypes)
    throw Error(Code::kCorrupt, "want a frame's type below {}, found {}", kFrameTypes, header.type);
  if (header.body_bytes > most_body_bytes)
    throw Error(Code::kCorrupt, "{} frame: want at most {} bytes, found {}",
                name_of(static_cast<FrameType>(header.type)), most_body_bytes, header.body_bytes);
  return header;
}

template <class T>
concept Plain = std::is_trivially_copyable_v<T>;

// A body in the making.
class BodyWriter {
 public:
  template <Plain T>
  void field(const T& value) {
    put(&value, sizeof value);
  }
  template <Plain T>
  void field(std::span<const T> values) {
    field(uint64_t{values.size()});
    put(values.data(), values.size_bytes());
  }
  void text(std::string_view value) { field(std::span<const char>(value)); }
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
  void field(T& value) {
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
  }
  // In the body, which outlives it. REQUIRES that what was before it has kept its alignment.
  template <Plain T>
  void field(std::span<const T>& values) {
    values = bare<T>(number<uint64_t>());
  }
  template <Plain T>
  [[nodiscard]] T number() {
    T value;
    field(value);
    return value;
  }
  template <Plain T>
  [[nodiscard]] std::span<const T> bare(uint64_t count) {  // whose reader knows how many they are
    if (count > left_.size() / sizeof(T)) refuse(fmt::format("{} more values", count));
    const std::byte* const at = take(count * sizeof(T)).data();
    check(reinterpret_cast<uintptr_t>(at) % alignof(T) == 0, "values lie aligned");
    return {reinterpret_cast<const T*>(at), static_cast<size_t>(count)};
  }
  [[nodiscard]] std::string text(size_t most) {
    std::span<const char> letters;
    field(letters);
    if (letters.size() > most) refuse(fmt::format("at most {} letters", most), fmt::format("{}", letters.size()));
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
