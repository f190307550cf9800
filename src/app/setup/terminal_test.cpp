#include "app/setup/terminal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

using std::chrono_literals::operator""s;

TEST(terminal, notes_progress_where_there_is_no_terminal) {
  OutputOptions options;
  options.dumb_terminal = true;
  std::vector<std::string> notes;
  const auto keep = [&](std::string_view note) { notes.emplace_back(note); };
  Terminal often(options, 0s), seldom(options);
  often.send_notes(keep);
  seldom.send_notes(keep);
  often.progress("pulling", 0.5, "7 of 14 GB");
  seldom.progress("pulling", 0.6, "");
  often.progress("checking", 1, "");
  EXPECT_THAT(notes, testing::ElementsAre("pulling: 50 %, 7 of 14 GB", "checking: 100 %"));
  options.quiet = true;
  Terminal quiet(options, 0s);
  quiet.send_notes(keep);
  quiet.progress("pulling", 0.5, "");
  EXPECT_EQ(notes.size(), 2u);
}

}  // namespace
}  // namespace nibble::app
