#pragma once
// Keeps responses in memory for previous_response_id and GET; the oldest are dropped first. Any thread.

#include "server/schema.h"

#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace nibble::server {

class ResponseStore {
 public:
  ResponseStore(size_t most_responses, size_t most_bytes) : most_(most_responses), most_bytes_(most_bytes) {}

  struct Entry {
    Json response;
    StoredTurn turn;  // the whole conversation up to and with this response
  };
  void put(const std::string& id, Entry entry);
  [[nodiscard]] std::optional<Entry> get(const std::string& id) const;  // a copy
  bool remove(const std::string& id);

 private:
  struct Kept {
    Entry entry;
    size_t bytes;
    std::list<std::string>::iterator age;
  };
  void drop(std::map<std::string, Kept, std::less<>>::iterator it);

  const size_t most_, most_bytes_;
  mutable std::mutex mutex_;  // guards all below
  std::map<std::string, Kept, std::less<>> kept_;
  std::list<std::string> by_age_;  // oldest first
  size_t bytes_ = 0;
};

}  // namespace nibble::server
