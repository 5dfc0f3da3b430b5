#include "eval/task.h"

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <iterator>
#include <map>

namespace mk::eval {
namespace {

std::string ErrorOf(std::string_view bytes) {
  const auto task = ParseTask("/t.jsonl", bytes, 0);
  return task ? "" : task.error().message;
}

TEST(Task, HasAllThatALineSays) {
  const auto task =
      ParseTask("/tasks/mine.jsonl",
                R"({"id": "x", "category": "c", "prompts": ["p", "q"], "choices": ["a", "b"],
"answer": "b", "rule": "choice", "delimiter": ""})"
                "\n",
                0);
  EXPECT_FALSE(task);  // a line break within
  const auto good = ParseTask(
      "/tasks/mine.jsonl",
      "{\"id\": \"x\", \"category\": \"c\", \"prompts\": [\"p\", \"q\"], \"choices\": [\"a\", "
      "\"b\"], \"answer\": \"b\", \"rule\": \"choice\", \"delimiter\": \"\"}\n"
      "{\"prompt\": \"2 + 2 =\", \"answer\": \"4\"}\n"
      "{\"prompt\": \"say\", \"answer\": [\"a\", \"b\"], \"rule\": \"generate\", \"until\": "
      "[\".\"], \"max_new\": 3}\n"
      "{\"prompt\": \"p\", \"choices\": [\"a\", \"b\"], \"answer\": 1}\n",
      0);
  ASSERT_TRUE(good) << good.error().message;
  EXPECT_EQ(good->name, "mine");
  ASSERT_EQ(good->probes.size(), 4U);
  const Probe& first = good->probes[0];
  EXPECT_EQ(first.id, "x");
  EXPECT_EQ(first.category, "c");
  EXPECT_EQ(first.prompts, (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(first.answer, 1U);
  EXPECT_EQ(first.rule, Rule::kChoice);
  EXPECT_EQ(first.delimiter, "");
  EXPECT_EQ(good->probes[1].rule, Rule::kGreedy);
  EXPECT_EQ(good->probes[1].answers, std::vector<std::string>{"4"});
  EXPECT_EQ(good->probes[1].delimiter, " ");
  EXPECT_EQ(good->probes[1].id, "line 2");
  EXPECT_EQ(good->probes[2].rule, Rule::kGenerate);
  EXPECT_EQ(good->probes[2].until, std::vector<std::string>{"."});
  EXPECT_EQ(good->probes[2].max_new, 3U);
  EXPECT_EQ(good->probes[3].rule, Rule::kChoiceNorm);
  EXPECT_EQ(ParseTask("/t", "{\"prompt\": \"a\", \"answer\": \"b\"}\n{\"prompt\": \"a\"}", 1)
                ->probes.size(),
            1U);
}

TEST(Task, SaysWhichLineIsWrongAndWhy) {
  const std::map<std::string, std::string> wrong = {
      {"nothing", "not a JSON object"},
      {"{\"prompt\": \"a\"}", "there is no \"answer\""},
      {"{\"answer\": \"a\"}", "one of \"prompt\" and \"prompts\" is needed"},
      {"{\"prompt\": \"a\", \"prompts\": [\"b\"], \"answer\": \"c\"}",
       "one of \"prompt\" and \"prompts\" is needed"},
      {"{\"prompt\": \"\", \"answer\": \"a\"}", "the prompt is empty"},
      {"{\"prompt\": 1, \"answer\": \"a\"}", "\"prompt\" is no string"},
      {"{\"prompts\": [], \"answer\": \"a\"}", "\"prompts\" is no list of strings"},
      {"{\"prompts\": [\"\"], \"answer\": \"a\"}", "\"prompts\" has an entry that is empty"},
      {"{\"prompt\": \"a\", \"answer\": 1}", "\"answer\" is no list of strings"},
      {"{\"prompt\": \"a\", \"answer\": \"a\", \"rule\": \"guess\"}", "unknown rule \"guess\""},
      {"{\"prompt\": \"a\", \"answer\": \"a\", \"rule\": \"choice\"}",
       "the rule choice needs \"choices\""},
      {"{\"prompt\": \"a\", \"choices\": [\"a\", \"b\"], \"answer\": 0, \"rule\": \"greedy\"}",
       "the rule greedy has no \"choices\""},
      {"{\"prompt\": \"a\", \"choices\": [\"a\"], \"answer\": 0}", "there is only one choice"},
      {"{\"prompt\": \"a\", \"choices\": [\"a\", \"b\"], \"answer\": 2}",
       "\"answer\" is none of the choices"},
      {"{\"prompt\": \"a\", \"choices\": [\"a\", \"b\"], \"answer\": -1}",
       "\"answer\" is none of the choices"},
      {"{\"prompt\": \"a\", \"choices\": [\"a\", \"b\"], \"answer\": \"c\"}",
       "\"answer\" is none of the choices"},
      {"{\"prompt\": \"a\", \"answer\": [\"a\", \"b\"]}", "the rule greedy has one answer"},
      {"{\"prompt\": \"a\", \"answer\": \"a\", \"until\": [\"x\"]}",
       "\"until\" and \"max_new\" go with the rule generate"},
      {"{\"prompt\": \"a\", \"answer\": \"a\", \"rule\": \"generate\", \"max_new\": 0}",
       "\"max_new\" is no number from 1 to 1024"},
      {"{\"prompt\": \"a\", \"answer\": \"a\", \"hint\": \"b\"}", "unknown field \"hint\""},
      {"{\"prompt\": \"a\xff\", \"answer\": \"a\"}", "not UTF-8"},
  };
  const std::string good = "{\"prompt\": \"a\", \"answer\": \"b\", \"id\": \"one\"}\n\n";
  for (const auto& [line, why] : wrong) {
    EXPECT_EQ(ErrorOf(good + line + "\n"), "/t.jsonl:3: " + why) << line;
  }
  EXPECT_EQ(ErrorOf(good + good), "/t.jsonl:3: a second probe of the id \"one\"");
  EXPECT_EQ(ErrorOf("\n"), "/t.jsonl has no probes");
  // Nested as deeply as one likes.
  EXPECT_EQ(ErrorOf(std::string(200'000, '[')), "/t.jsonl:1: not a JSON object");
}

Task Bundled(const std::string& name) {
  const std::string path = std::string(MK_SOURCE_DIR) + "/eval/data/" + name + ".jsonl";
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  auto task = ParseTask(path, bytes, 0);
  EXPECT_TRUE(task) << task.error().message;
  return task ? std::move(*task) : Task{};
}

TEST(Task, TheBundledFactsAreEightyAndMoreInTwoPhrasingsAndCategories) {
  const Task facts = Bundled("facts");
  EXPECT_GE(facts.probes.size(), 80U);
  std::map<std::string, size_t> categories;
  std::array<double, 4> places{};
  for (const Probe& probe : facts.probes) {
    EXPECT_EQ(probe.prompts.size(), 2U) << probe.id;
    ASSERT_EQ(probe.choices.size(), 4U) << probe.id;
    ++categories[probe.category];
    places[probe.answer] += 1;
  }
  EXPECT_GE(categories.size(), 5U);
  for (const auto& [name, count] : categories) EXPECT_GE(count, 10U) << name;
  // Whoever always picks the same place gains nothing.
  for (const double count : places) {
    EXPECT_NEAR(count / static_cast<double>(facts.probes.size()), 0.25, 0.03);
  }
  EXPECT_GE(Bundled("stories").probes.size(), 40U);
}

}  // namespace
}  // namespace mk::eval
