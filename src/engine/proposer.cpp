#include "engine/proposer.h"

#include "base/error.h"
#include "engine/draft_model_proposer.h"

#include <algorithm>

namespace nibble::engine {
namespace {

constexpr int64_t kMostOfOne = int64_t{1} << 20;  // tokens of one request that are looked at: more than any context

// Its index, with all of the text.
TokenIndex& indexed(std::unordered_map<RequestId, TokenIndex>& of, const Proposer::Text& text,
                    std::span<const int> lengths) {
  TokenIndex& index = of.try_emplace(text.id, lengths, kMostOfOne).first->second;
  for (auto i = static_cast<size_t>(index.end()); i < text.tokens.size(); ++i) index.add(text.tokens[i]);
  return index;
}

}  // namespace

NgramProposer::NgramProposer(int least_lookup, int most_lookup) {
  for (int length = most_lookup; length >= least_lookup; --length) lengths_.push_back(length);
}

void NgramProposer::propose(const Text& text, int most, Draft& draft) {
  draft.tokens.clear();
  const TokenIndex& index = indexed(of_, text, lengths_);
  for (size_t i = 0; i < lengths_.size(); ++i) {
    index.places(text.tokens, i, 1, places_);
    if (places_.empty()) continue;
    draft.matched = lengths_[i];
    for (int64_t p = places_[0]; std::ssize(draft.tokens) < most; ++p)
      draft.tokens.push_back(p < index.end() ? index.at(p) : draft.tokens[static_cast<size_t>(p - index.end())]);
    return;
  }
}

SuffixProposer::SuffixProposer(int64_t past_tokens) : past_(kLengths, past_tokens) {}

void SuffixProposer::propose(const Text& text, int most, Draft& draft) {
  draft.tokens.clear();
  best_.clear();
  matched_ = 0;
  find(indexed(of_, text, kLengths), text.tokens);
  if (text.shares) find(past_, text.tokens);
  draft.matched = static_cast<int>(matched_);
  const auto all = static_cast<double>(best_.size());
  while (std::ssize(draft.tokens) < most && !best_.empty()) {
    int32_t chosen = kSeparator;
    int64_t count = 0;
    for (const Place& place : best_) {  // the newest of equals, as it comes first
      const int32_t token = token_after(place, draft.tokens);
      const auto same = std::count_if(best_.begin(), best_.end(),
                                      [&](const Place& other) { return token_after(other, draft.tokens) == token; });
      if (token != kSeparator && same > count) {
        chosen = token;
        count = same;
      }
    }
    if (static_cast<double>(count) < kLeastShare * all || count == 0) return;
    std::erase_if(best_, [&](const Place& place) { return token_after(place, draft.tokens) != chosen; });
    draft.tokens.push_back(chosen);
  }
}

// The places that share most tokens with the end of the text go to best_, if no other shares more.
void SuffixProposer::find(const TokenIndex& index, std::span<const int32_t> text) {
  for (size_t i = 0; i < kLengths.size(); ++i) {
    index.places(text, i, kMostPlaces, places_);
    if (!places_.empty()) break;
  }
  for (const int64_t position : places_) {
    const int64_t matched = index.shared(text, position, kMostMatched);
    if (matched < matched_) continue;
    if (matched > matched_) best_.clear();
    matched_ = matched;
    best_.push_back({&index, position});
  }
}

// The copy of one's own text may reach into the copy.
int32_t SuffixProposer::token_after(const Place& place, std::span<const int32_t> drafted) const {
  const int64_t position = place.position + std::ssize(drafted), end = place.index->end();
  if (position < end) return place.index->at(position);
  return place.index == &past_ ? kSeparator : drafted[static_cast<size_t>(position - end)];
}

void SuffixProposer::ended(const Text& text) {
  of_.erase(text.id);
  if (!text.shares || std::ssize(text.tokens) == text.prompt_tokens) return;
  const auto first = static_cast<size_t>(std::max<int64_t>(0, text.prompt_tokens - kPromptBeforeAnswer));
  for (const int32_t token : text.tokens.subspan(first)) past_.add(token);
  past_.add(kSeparator);
}

std::unique_ptr<Proposer> make_proposer(const SpeculationLimits& limits) {
  switch (limits.method) {
    case DraftMethod::kOff: return nullptr;
    case DraftMethod::kNgram: return std::make_unique<NgramProposer>(limits.least_lookup, limits.most_lookup);
    case DraftMethod::kSuffix: return std::make_unique<SuffixProposer>();
    case DraftMethod::kEagle3:
    case DraftMethod::kDraft:
      check(limits.draft_model != nullptr, "a model drafts");
      return std::make_unique<DraftModelProposer>(*limits.draft_model);
  }
  return nullptr;
}

}  // namespace nibble::engine
