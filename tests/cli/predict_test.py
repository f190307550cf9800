"""nibble predict: the shape of its tables, how flags reach them, what it refuses. Figures are predictor_test.cpp's."""
import support
from support import TINY, UNSUPPORTED, USAGE, Case



class Predictions(Case):
    def predict(self, *args):
        return self.ok("predict", "--card", *args, "--json").json()

    def test_a_card_that_is_not_here(self):
        report = self.predict("gb10", "-b", "1,8", "-p", 2048, "-d", "2048,8192")
        self.assertEqual(report["model"], "gpt-oss-120b")
        self.assertEqual(report["device"], "GB10")
        self.assertEqual([t["weights"][:9] for t in report["tables"]], ["exact (ex", "dense lay", "all MXFP4"])
        for table in report["tables"]:
            self.assertEqual([r["step"] for r in table["rows"]], ["tg @ d2048, batch 1", "tg @ d8192, batch 1", "tg @ d2048, batch 8", "pp2048"])
            for row in table["rows"]:
                self.assertTrue(row["fits"])
                self.assertTrue(0 < row["of_limit"] < 1)
                self.assertAlmostEqual(row["tokens_per_second"], row["of_limit"] * row["limit_tokens_per_second"], 6)
                self.assertEqual({k["stage"] for k in row["kernels"]}, {"embed", "attn_in", "attend", "attn_out", "route", "moe", "logits"})
        self.assertTrue(any("nothing here was measured on this card" in line for line in report["assumptions"]))

    def test_the_limit_is_that_of_the_plans_cost(self):
        row = self.predict("h100", "gpt-oss-20b", "-b", 8, "-p", 0, "-d", 4096)["tables"][0]["rows"][0]
        plan = self.ok("inspect", "gpt-oss-20b", "--load-format", "dummy", "--plan", "--backend", "cuda", "--card", "h100", "-b", 8, "-p", 0, "-d", 4096, "--json").json()["plans"][0]
        self.assertAlmostEqual(row["limit_tokens_per_second"] * plan["bytes"] / 8 / 3.12e12, 1, 5)
        self.assertEqual(sorted({k["kernel"] for k in row["kernels"]} - {"any_sample_draw_f32"}), sorted({s["kernel"] for s in plan["stages"]}))

    def test_options_reach_the_prediction(self):
        rows = [self.predict("h200", "-b", 1, "-p", 0, "-d", 32768, *flags)["tables"][0]["rows"][0] for flags in ((), ("--kv-cache-dtype", "fp8"), ("--mxfp4-layers", "all"), ("--neutral",))]
        plain, fp8, mxfp4, neutral = (r["tokens_per_second"] for r in rows)
        self.assertLess(plain, fp8)
        self.assertLess(plain, mxfp4)
        self.assertLess(neutral, plain)
        steps = [self.predict("h200", "-b", 0, "-p", 8192, *flags)["tables"][0]["rows"][0] for flags in ((), ("--max-num-batched-tokens", 512))]
        self.assertGreater(steps[0]["tokens_per_second"], steps[1]["tokens_per_second"])
        self.assertIn("too much", self.ok("predict", "--card", "4090", "-b", 1, "-p", 0, "--n-cpu-moe", 0).out)
        small = self.ok("predict", "--card", "4090", "-b", 1, "-p", 0).out
        self.assertIn(" L |", small)
        self.assertIn("L: layers whose experts the host computes, reading 80 GB/s", small)
        self.assertIn("--gpu-memory-utilization 0.92 gives", small)
        rates = [self.predict("4090", "-b", 1, "-p", 2048, "-d", 32, *flags)["tables"][0]["rows"] for flags in (("--host-read", 40), ("--host-read", 80), ("--host-link", 50))]
        self.assertLess(rates[0][0]["tokens_per_second"], rates[1][0]["tokens_per_second"])
        self.assertLess(rates[0][1]["tokens_per_second"], rates[2][1]["tokens_per_second"])
        self.assertNotIn("too much", self.ok("predict", "gpt-oss-20b", "--card", "4090", "-b", 1, "-p", 0).out)
        self.assertEqual(self.predict("a100", TINY, "-b", 1, "-p", 0, "-d", 64)["model"], "nibble-tiny")

    def test_inspect_says_which_contexts_a_card_has_memory_for(self):
        shape = ("--load-format", "dummy", "--context", 4096, "--context", 131072)
        small = self.ok("inspect", "gpt-oss-20b", *shape, "--card", "3090", "--json").json()
        self.assertEqual([m["fits"] for m in small["memory"]], [True, True])
        self.assertTrue(all(m["card_bytes"] > m["total_bytes"] for m in small["memory"]))
        self.assertEqual(small["card"]["device"], "RTX 3090")
        large = self.ok("inspect", "gpt-oss-120b", *shape, "--card", "a100-40gb").out
        self.assertEqual(large.count(" layers on the host: fits"), 2)
        self.assertNotIn("card", self.ok("inspect", "gpt-oss-20b", *shape, "--json").json())

    def test_ranks_share_the_weights_and_pay_for_sums(self):
        shape = ("-b", "1", "-p", 2048, "-d", 2048)
        one, two = self.predict("h100", *shape), self.predict("h100", *shape, "--tensor-parallel-size", 2)
        self.assertEqual((two["ranks"], two["link"]["name"]), (2, "nvlink4"))
        self.assertTrue(any("NVLink 4" in line and "measured" in line for line in two["assumptions"]))
        for alone, shared in zip(one["tables"][0]["rows"], two["tables"][0]["rows"]):
            self.assertLess(alone["tokens_per_second"], shared["tokens_per_second"])
            self.assertLess(shared["tokens_per_second"], 2 * alone["tokens_per_second"])
            self.assertLess(shared["memory_bytes"], 0.6 * alone["memory_bytes"])
        sums = [[k for k in row["kernels"] if k["stage"] != "logits" and k["kernel"].startswith("any_push")] for row in two["tables"][0]["rows"]]
        self.assertEqual(sum(k["launches"] for k in sums[0]), 72)
        self.assertEqual({k["held_by"] for k in sums[0] + sums[1]}, {"link"})
        self.assertTrue(all(k["kernel"].startswith("any_push_reduce") for k in sums[0]), sums[0])
        self.assertEqual({k["kernel"] for k in sums[1]}, {"any_push_barrier"})
        for table in two["tables"]:
            self.assertEqual([rank["heads"] for rank in table["ranks"]], [32, 32])
            for rank in table["ranks"]:
                self.assertLess(rank["weight_bytes"] + rank["mailbox_bytes"] + rank["kv_tokens"] * 18 * 2 * 4 * 64 * 2, rank["memory_bytes"])
        self.assertGreater(two["tables"][0]["ranks"][0]["weight_bytes"], two["tables"][2]["ranks"][0]["weight_bytes"])
        self.assertNotIn("ranks", one["tables"][0])
        told = self.ok("predict", "--card", "gb10", "--tensor-parallel-size", 2, "-b", 1, "-p", 0, "-d", 2048)
        self.assertIn("Memory of each rank", told.out)
        far = [self.predict("gb10", *shape, "--tensor-parallel-size", 2, *flags)["tables"][0]["rows"][0]["tokens_per_second"]
               for flags in ((), ("--link-us", 5), ("--link", "nvlink4"))]
        self.assertLess(far[0], far[1])
        self.assertLess(far[1], far[2])

    def test_what_is_refused(self):
        self.refused(USAGE, "predict", "--card", "gb10", "--link", "nvlink4", says="--tensor-parallel-size of at least 2")
        self.refused(USAGE, "predict", "--card", "gb10", "--link", "string", "--tensor-parallel-size", 2, says=("string", "connectx7"))
        self.refused(USAGE, "predict", "--card", "gb10", "--tensor-parallel-size", 3, says="3")
        self.refused(USAGE, "predict", says="--card")
        self.refused(USAGE, "predict", "--card", "gtx-480", says=("gtx-480", "gb10", "rtx-pro-6000"))
        self.refused(USAGE, "predict", "--card", "gb10", "-b", 0, "-p", 0, says="nothing to predict")
        self.refused(USAGE, "predict", "--card", "gb10", "-d", 131072, says="131072")
        self.refused(USAGE, "predict", "--card", "gb10", "--threads", 4, says="--threads")
        self.refused(UNSUPPORTED, "predict", "--card", "gb10", "--moe-kernel", "reference", says="nobody has measured")
        self.refused(UNSUPPORTED, "predict", "--card", "gb10", "--moe-activation", "f32", says="want --backend cpu")

if __name__ == "__main__":
    support.main()
