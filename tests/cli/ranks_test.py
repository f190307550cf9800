"""Several ranks, several replicas: the texts of one, and what is refused."""

import support
from serve_support import Server
from support import TINY, Case

PROMPT = ("-m", TINY, "-p", "Once upon a time", "-n", 20, "--temperature", 0, "--json")
PLAN = ("inspect", "-m", "gpt-oss-120b", "--load-format", "dummy", "--plan", "-b", 1, "-p", 0, "--json")


class Ranks(Case):
    def test_write_the_text_of_one(self):
        want = self.ok("run", *PROMPT, *support.EXACT).json()["token_ids"]
        for flags in (("--tensor-parallel-size", 2), ("--tensor-parallel-size", 8), ("--tensor-parallel-size", 4, "--enable-expert-parallel"),
                      ("--enable-expert-parallel",), ("--tensor-parallel-size", 8, "--threads", 1)):
            self.assertEqual(self.ok("run", *PROMPT, *support.EXACT, *flags).json()["token_ids"], want, flags)
        dummy = ("run", "-m", "tiny", "--load-format", "dummy", "-p", "a", "-n", 8, "--temperature", 0, "--json", *support.EXACT)
        self.assertEqual(self.ok(*dummy, "--tensor-parallel-size", 4).json()["token_ids"], self.ok(*dummy).json()["token_ids"])

    def test_both_backends_of_compare_have_them(self):
        self.assertIn("agree", self.ok("compare", "-m", TINY, "--tensor-parallel-size", 4, "--enable-expert-parallel").out)

    def test_what_cannot_be_is_refused(self):
        for flags, code, says in ((("--tensor-parallel-size", 3), 2, ("8 query heads", "2 KV heads", "found 3")), (("--tensor-parallel-size", 0), 2, "--tensor-parallel-size")):
            self.refused(code, "run", *PROMPT, *flags, says=says)
        self.refused(2, *PLAN, "--backend", "cuda", "--tensor-parallel-size", 5, says="found 5")

    def test_the_plan_says_what_each_holds(self):
        one = self.ok(*PLAN, "--backend", "cpu").json()
        self.assertNotIn("ranks", one)
        for count, widths in ((2, [1440] * 2), (4, [736] * 3 + [672]), (8, [384] * 7 + [192])):
            ranks = self.ok(*PLAN, "--backend", "cpu", "--tensor-parallel-size", count).json()["ranks"]
            self.assertEqual([rank["inter"] for rank in ranks], widths)
            self.assertEqual({rank["kv_heads"] for rank in ranks}, {8 // count})
            self.assertGreater(sum(rank["weight_bytes"] for rank in ranks), 65e9)
        cards = self.ok(*PLAN, "--backend", "cuda", "--card", "3090", "--tensor-parallel-size", 4).json()
        self.assertIn("4 x ", cards["device"])
        sums = [(stage["stage"], stage["layers"]) for stage in cards["plans"][0]["stages"] if stage["kernel"].startswith("any_push_reduce")]
        self.assertEqual(sums, [("attn_out", "36"), ("moe", "36")])
        for rank in cards["ranks"]:
            self.assertLess(rank["weight_bytes"] + rank["kv_tokens"] * 18 * 2 * 2 * 64 * 2, rank["memory_bytes"])
        lone = self.ok(*PLAN, "--backend", "cuda", "--card", "3090", "--tensor-parallel-size", 2).json()["ranks"]
        self.assertEqual([rank["kv_tokens"] for rank in lone], [0, 0])  # 33 GB do not fit into 24


class Replicas(Case):
    def complete(self, server, prompt, tokens):
        answer = server.request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})
        self.assertEqual(answer.status, 200, answer.raw)
        body = answer.json()
        return body["choices"][0]["text"], body["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_a_conversation_goes_back_to_its_replica_and_texts_are_those_of_one(self):
        topics = ["a cat", "a ship", "the king", "snow", "bread", "an old man"]
        texts = {}
        for flags in ((), ("-dp", 3, "-tp", 2)):
            server = Server("--threads", 3, *flags, *support.EXACT)
            self.addCleanup(server.process.kill)
            talks = [f"This is a long story about {topic}. " * 30 for topic in topics]
            for turn in range(3):
                for i, talk in enumerate(talks):
                    text, cached = self.complete(server, talk, 12)
                    if turn > 0:
                        self.assertGreater(cached, 128, f"{flags} turn {turn} of {topics[i]}")
                    talks[i] += text + " And then? "
            texts[flags] = talks
            self.assertEqual(server.stop(), 0)
        self.assertEqual(*texts.values())

    def test_what_cannot_be_is_refused(self):
        self.refused(2, "serve", TINY, "-dp", 0, says="--data-parallel-size")


if __name__ == "__main__":
    support.main()
