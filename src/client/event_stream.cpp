#include "client/event_stream.h"

#include <algorithm>

namespace nibble::client {

void EventStream::line(std::string_view text, const OnData& on_data) {
  if (text.empty()) {
    if (has_data_) on_data(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  const size_t colon = text.find(':');
  if (text.substr(0, colon) != "data") return;  // a comment, or a field that says nothing of the answer
  std::string_view value = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += value;
  has_data_ = true;
}

bool EventStream::take(std::string_view bytes, const OnData& on_data) {
  if (bytes.empty()) return true;
  if (after_cr_ && bytes.starts_with('\n')) bytes.remove_prefix(1);
  after_cr_ = false;
  while (!bytes.empty()) {
    // Two quick searches: find_first_of takes a call per byte.
    const size_t feed = bytes.find('\n'), end = std::min(feed, bytes.substr(0, feed).find('\r'));
    if (part_.size() + data_.size() + std::min(end, bytes.size()) > kMostEventBytes) return false;
    if (end == std::string_view::npos) {
      part_ += bytes;
      return true;
    }
    if (part_.empty()) {
      line(bytes.substr(0, end), on_data);
    } else {
      part_ += bytes.substr(0, end);
      line(part_, on_data);
      part_.clear();
    }
    const bool cr = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (cr && bytes.starts_with('\n'))
      bytes.remove_prefix(1);
    else
      after_cr_ = cr && bytes.empty();
  }
  return true;
}

}  // namespace nibble::client
