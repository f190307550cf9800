#include "server/response_store.h"

#include <utility>

namespace nibble::server {
namespace {

// Approximate, which is enough for a limit.
size_t bytes_of(const ResponseStore::Entry& entry) {
  size_t bytes = 2 * to_text(entry.response).size() + 1024;
  for (const std::string& text : entry.turn.instructions) bytes += text.size();
  for (const text::Message& message : entry.turn.history) {
    bytes += sizeof message;
    for (const text::Content& content : message.content) {
      if (const auto* plain = std::get_if<std::string>(&content)) bytes += plain->size();
      if (const auto* developer = std::get_if<text::DeveloperOptions>(&content))
        bytes += developer->instructions.value_or("").size();
    }
  }
  return bytes;
}

}  // namespace

void ResponseStore::put(const std::string& id, Entry entry) {
  const size_t bytes = bytes_of(entry);
  if (bytes > most_bytes_) return;
  const std::lock_guard lock(mutex_);
  by_age_.push_back(id);
  kept_.insert_or_assign(id, Kept{std::move(entry), bytes, std::prev(by_age_.end())});
  bytes_ += bytes;
  while (kept_.size() > most_ || bytes_ > most_bytes_) drop(kept_.find(by_age_.front()));
}

std::optional<ResponseStore::Entry> ResponseStore::get(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto it = kept_.find(id);
  return it == kept_.end() ? std::nullopt : std::optional(it->second.entry);
}

bool ResponseStore::remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto it = kept_.find(id);
  if (it == kept_.end()) return false;
  drop(it);
  return true;
}

void ResponseStore::drop(std::map<std::string, Kept, std::less<>>::iterator it) {
  bytes_ -= it->second.bytes;
  by_age_.erase(it->second.age);
  kept_.erase(it);
}

}  // namespace nibble::server
