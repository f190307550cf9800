#include "text/harmony_header.h"

#include "base/ascii.h"
#include "text/text_stream.h"

#include <algorithm>
#include <array>
#include <utility>

namespace nibble::text {
namespace {

constexpr std::array kChannels = {kAnalysisChannel, kCommentaryChannel, kFinalChannel};
constexpr std::array<std::string_view, 3> kContentTypes = {"json", "code", "text"};  // seen in the models' output
constexpr std::array<std::string_view, 2> kBuiltInTools = {"python", "browser"};

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
size_t name_length(std::string_view text) {
  const auto is_part = [](char c) { return is_word_char(c, "_-./:+@"); };
  return static_cast<size_t>(std::ranges::find_if_not(text, is_part) - text.begin());
}
template <size_t N>
bool is_one_of(std::string_view word, const std::array<std::string_view, N>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// functions.f, browser.search, python: what a recipient without to= looks like.
bool is_tool_like(std::string_view word) {
  const size_t dot = word.find('.');
  return is_one_of(word, kBuiltInTools) || (dot != std::string_view::npos && dot > 0 && word.back() != '.');
}

// Sloppy endings of a channel name, `commentary?`. Anything else after the name is the message's text.
bool is_sloppy_ending(std::string_view text) { return text.find_first_not_of("?!.,:;|<>") == std::string_view::npos; }

class HeaderReader {
 public:
  HeaderReader(const HeaderText& text, HeaderEnd end) : text_(text), end_(end) {}

  HeaderReading read() {
    bool is_header = true;
    for (size_t i = 0; i < text_.parts.size() && is_header; ++i) {
      if (i > 0) confirm();
      is_header = read_part(i);
    }
    if (is_header && end_ == HeaderEnd::kMessage) confirm();
    const bool no_message = end_ == HeaderEnd::kAbandoned || end_ == HeaderEnd::kTruncated;
    const bool too_long = end_ == HeaderEnd::kOpen && text_.bytes() > kMaxHeaderBytes;
    if (is_header && (too_long || (no_message && !uncertain_.empty() && !is_cut_short()))) out_.text = uncertain_;
    if (out_.text) repaired(Repair::kMissingMessage);
    if (out_.text || end_ == HeaderEnd::kMessage || no_message) resolve();
    return std::move(out_);
  }

 private:
  enum class Verdict {
    kTaken,      // only a header holds this
    kUncertain,  // a field if a formatting token follows, text otherwise
    kText,       // the header ended before this word, or inside it (taken_bytes_)
  };

  // Reads the words of one part; false when the header ended inside it.
  bool read_part(size_t part_idx) {
    marker_ = text_.parts[part_idx].marker;
    const std::string_view text = text_.parts[part_idx].text;
    const bool is_last = part_idx + 1 == text_.parts.size();
    size_t word_idx = 0;
    for (size_t at = 0; at < text.size(); ++word_idx) {
      const size_t begin =
          static_cast<size_t>(std::find_if_not(text.begin() + at, text.end(), is_space) - text.begin());
      const size_t end = static_cast<size_t>(std::find_if(text.begin() + begin, text.end(), is_space) - text.begin());
      if (begin == end) break;
      const size_t next =
          static_cast<size_t>(std::find_if_not(text.begin() + end, text.end(), is_space) - text.begin());
      const bool complete = end < text.size() || !is_last || end_ != HeaderEnd::kOpen;
      const Verdict verdict = judge(word_idx, text.substr(begin, end - begin), complete);
      if (verdict == Verdict::kText) {
        out_.text = uncertain_ + std::string(text.substr(begin + taken_bytes_));
        return false;
      }
      if (verdict == Verdict::kUncertain) uncertain_ += text.substr(begin, next - begin);
      at = next;
    }
    return true;
  }

  // An incomplete word is judged only if no further byte can change the verdict.
  Verdict judge(size_t word_idx, std::string_view word, bool complete) {
    taken_bytes_ = 0;
    const bool is_recipient = word.starts_with("to=");
    if (word_idx == 0 && marker_ == HeaderText::Marker::kChannel && !is_recipient)
      return complete ? judge_channel(word) : Verdict::kUncertain;
    if (is_recipient) return judge_recipient(word, complete);
    if (word_idx == 0 && marker_ == HeaderText::Marker::kConstrain) return judge_type(word, complete);
    const bool is_role_place = word_idx == 0 && marker_ == HeaderText::Marker::kNone;
    if (!complete) {
      const bool may_be_named_role = is_role_place && word.find(':') != std::string_view::npos &&
                                     role_named(word.substr(0, word.find(':')));  // a name holds any byte
      return name_length(word) < word.size() && !may_be_named_role ? Verdict::kText : Verdict::kUncertain;
    }
    return is_role_place ? judge_role(word) : judge_bare(word);
  }

  Verdict judge_role(std::string_view word) {
    const size_t colon = word.find(':');
    const std::optional<Role> role = role_named(word.substr(0, colon));
    const bool starts = text_.opening == HeaderText::Opening::kStart;
    const bool same = role == text_.role && colon == std::string_view::npos;
    if (role && (starts || same || text_.opening == HeaderText::Opening::kMissingStart)) {
      MessageHeader& fields = starts ? sure_ : maybe_;
      (starts ? sure_role_ : maybe_role_) = role;
      if (colon != std::string_view::npos) fields.name = word.substr(colon + 1);
      return starts ? Verdict::kTaken : Verdict::kUncertain;
    }
    if (!starts) return judge_bare(word);
    if (name_length(word) < word.size()) return Verdict::kText;
    maybe_role_ = Role::kTool;
    maybe_.name = word;
    maybe_unknown_role_ = !is_tool_like(word);
    return Verdict::kUncertain;
  }

  Verdict judge_channel(std::string_view word) {
    for (const std::string_view channel : kChannels) {
      if (!word.starts_with(channel)) continue;
      const std::string_view rest = word.substr(channel.size());
      if (!rest.empty() && rest.front() >= 'a' && rest.front() <= 'z') continue;  // finally
      sure_.channel = channel;
      if (rest.empty()) return Verdict::kTaken;
      if (is_sloppy_ending(rest)) {
        repaired(Repair::kUnknownChannel);
        return Verdict::kTaken;
      }
      taken_bytes_ = channel.size();
      return Verdict::kText;
    }
    maybe_unknown_channel_ = std::string(word);
    return Verdict::kUncertain;
  }

  Verdict judge_type(std::string_view word, bool complete) {
    const std::string_view type = word.substr(0, name_length(word));
    const bool is_whole_word = type.size() == word.size();
    if (is_whole_word && !complete) return Verdict::kUncertain;
    const bool known = is_one_of(type, kContentTypes);
    const bool contradicts = sure_.content_type && sure_.content_type->name != type;
    if (contradicts || (!known && !is_whole_word)) return Verdict::kText;
    (known ? sure_ : maybe_).content_type = ContentType{std::string(type), true};
    taken_bytes_ = type.size();
    if (!is_whole_word) return Verdict::kText;
    return known ? Verdict::kTaken : Verdict::kUncertain;
  }

  Verdict judge_recipient(std::string_view word, bool complete) {
    const std::string_view tool = word.substr(3, name_length(word.substr(3)));
    const bool ends_here = complete || tool.size() + 3 < word.size();
    if (!ends_here) return Verdict::kUncertain;
    const std::optional<std::string>& earlier = sure_.recipient ? sure_.recipient : maybe_.recipient;
    if (tool.empty() || (earlier && *earlier != tool)) return Verdict::kText;
    sure_.recipient = tool;
    maybe_unknown_role_ = false;  // an unknown role that sends to someone is a tool
    confirm();
    taken_bytes_ = tool.size() + 3;
    return taken_bytes_ < word.size() ? Verdict::kText : Verdict::kTaken;
  }

  Verdict judge_bare(std::string_view word) {
    if (name_length(word) < word.size()) return Verdict::kText;
    const bool has_recipient = sure_.recipient || maybe_.recipient,
               has_type = sure_.content_type || maybe_.content_type;
    if (!has_type && (is_one_of(word, kContentTypes) || has_recipient)) {
      maybe_.content_type = ContentType{std::string(word), false};
      return Verdict::kUncertain;
    }
    if (has_recipient || !is_tool_like(word)) return Verdict::kText;
    maybe_.recipient = word;
    return Verdict::kUncertain;
  }

  // Markup follows uncertain words, so they belong to the header.
  void confirm() {
    if (maybe_role_) {
      sure_role_ = maybe_role_;
      sure_.name = maybe_.name;
      sure_unknown_role_ = maybe_unknown_role_;
    }
    if (maybe_.recipient) sure_.recipient = maybe_.recipient;
    if (maybe_.content_type) sure_.content_type = maybe_.content_type;
    if (maybe_unknown_channel_) sure_unknown_channel_ = maybe_unknown_channel_;
    maybe_ = {};
    maybe_role_.reset();
    maybe_unknown_channel_.reset();
    maybe_unknown_role_ = false;
    uncertain_.clear();
  }

  // The stream ended inside what looks like markup and not like text: `<|channel|>comm`, `<|start|>functions.f`.
  [[nodiscard]] bool is_cut_short() const {
    if (end_ != HeaderEnd::kTruncated) return false;
    if (maybe_unknown_channel_)
      return std::any_of(kChannels.begin(), kChannels.end(),
                         [&](std::string_view channel) { return channel.starts_with(*maybe_unknown_channel_); });
    return maybe_role_.has_value() || (marker_ == HeaderText::Marker::kConstrain && maybe_.content_type);
  }

  // Fills the fields that the words left open.
  void resolve() {
    MessageHeader& header = out_.header = sure_;
    header.role = sure_role_.value_or(text_.role);
    if (!sure_role_ && text_.opening != HeaderText::Opening::kStart) header.name = text_.name;
    if (sure_unknown_role_) repaired(Repair::kUnknownRole);
    if (!sure_role_ && text_.opening == HeaderText::Opening::kStart) repaired(Repair::kUnknownRole);
    if (!header.channel && sure_unknown_channel_) {
      if (header.role == Role::kAssistant)
        repaired(Repair::kUnknownChannel);
      else
        header.channel = sure_unknown_channel_;
    }
    if (!header.channel && header.role == Role::kAssistant) {
      if (!sure_unknown_channel_) repaired(Repair::kMissingChannel);
      header.channel = header.recipient ? kCommentaryChannel : kFinalChannel;
    }
    header.name = valid_utf8(header.name);
    if (header.role == Role::kTool && header.name.empty())
      header.name = name_of(Role::kTool);  // as openai-harmony does
    if (header.channel) header.channel = valid_utf8(*header.channel);
  }

  void repaired(Repair what) { out_.repairs.push_back(what); }

  const HeaderText& text_;
  HeaderEnd end_;
  HeaderReading out_;
  HeaderText::Marker marker_ = HeaderText::Marker::kNone;
  size_t taken_bytes_ = 0;  // with kText: how much of the word still belongs to the header
  // Fields by how sure they are; the uncertain ones, their raw text.
  MessageHeader sure_, maybe_;
  std::optional<Role> sure_role_, maybe_role_;
  std::optional<std::string> sure_unknown_channel_, maybe_unknown_channel_;
  bool sure_unknown_role_ = false, maybe_unknown_role_ = false;
  std::string uncertain_;
};

}  // namespace

size_t HeaderText::bytes() const {
  size_t sum = 0;
  for (const Part& part : parts) sum += part.text.size();
  return sum;
}

HeaderReading read_header(const HeaderText& text, HeaderEnd end) { return HeaderReader(text, end).read(); }

}  // namespace nibble::text
