// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "performer/report/chart.h"
#include "performer/report/page.h"
#include "performer/report/run_record.h"

namespace performer {
namespace {

namespace fs = std::filesystem;

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

class Report : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("performer-report-" +
               std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + "-" +
               std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string make_run(const std::string& name, const std::string& config,
                       const std::string& metrics) {
    fs::create_directories(folder_ / name);
    std::ofstream(folder_ / name / "config.json") << config;
    std::ofstream(folder_ / name / "metrics.jsonl") << metrics;
    return (folder_ / name).string();
  }

  fs::path folder_;
};

constexpr const char* kMetrics =
    R"({"step":10,"tokens":1000000,"loss":3.0,"lr":0.001,"grad_norm":1.5,"tokens_per_s":100,"elapsed_s":60,"peak_memory_bytes":5000000}
{"step":10,"split":"valid","loss":2.9,"perplexity":18.174,"accuracy":0.1,"baseline_loss":3.0,"baseline_perplexity":20.085,"baseline_accuracy":0.09}
{"step":10,"layer":0,"query_norm":1.25}
{"step":10,"layer":1,"query_norm":2.5}
{"step":20,"tokens":2000000,"loss":2.5,"lr":0.002,"grad_norm":1.0,"tokens_per_s":300,"elapsed_s":125,"peak_memory_bytes":7000000}
{"step":20,"split":"valid","loss":2.7,"perplexity":14.88,"accuracy":0.125,"baseline_loss":3.0,"baseline_perplexity":20.085,"baseline_accuracy":0.09}
{"step":20,"split":"test","loss":2.75,"perplexity":15.643,"accuracy":0.12,"baseline_loss":3.1,"baseline_perplexity":22.198,"baseline_accuracy":0.08}
{"step":30,"tok)";

TEST_F(Report, ReadsWhatARunLeft) {
  const RunRecord run = read_run_record(make_run("a", R"({"dim":64})", kMetrics) + "/");
  EXPECT_EQ(run.name, (folder_ / "a").string());
  EXPECT_EQ(run.training.size(), 2u);
  EXPECT_EQ(run.evaluations.size(), 3u);
  EXPECT_EQ(run.layers.size(), 2u);
  EXPECT_EQ(run.damaged_lines, 1);
  EXPECT_EQ(run.splits(), (std::vector<std::string>{"valid", "test"}));
  const std::vector<Point> points = RunRecord::points(run.training, "elapsed_s", "loss");
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[1].x, 125);
  EXPECT_EQ(points[1].y, 2.5);
}

TEST_F(Report, NamesTheFileThatIsMissing) {
  const auto error_of = [](const std::string& folder) -> std::string {
    try {
      read_run_record(folder);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string nowhere = (folder_ / "nowhere").string();
  EXPECT_EQ(error_of(nowhere), nowhere + " is no folder, expected the folder of a run");
  const std::string run = make_run("a", "{}", kMetrics);
  fs::remove(fs::path(run) / "metrics.jsonl");
  EXPECT_NE(error_of(run).find(run + "/metrics.jsonl: cannot be opened"), std::string::npos);
  fs::remove(fs::path(run) / "config.json");
  EXPECT_NE(error_of(run).find(run + "/config.json"), std::string::npos);
}

TEST_F(Report, PageHoldsResultsDifferencesAndPictures) {
  const std::string a = make_run("a", R"({"dim":64,"attention":"favor"})", kMetrics);
  const std::string b = make_run("b", R"({"dim":64,"attention":"<exact>"})", kMetrics);
  fs::create_directories(fs::path(a) / "attention");
  std::ofstream(fs::path(a) / "attention" / "map.png") << "\x89PNG";
  std::ofstream(fs::path(a) / "attention" / "map.tsv") << "no picture";
  const std::string page = report_page({read_run_record(a), read_run_record(b)}, "made <here>");
  // Best evaluation, last step, median speed, largest memory, time.
  for (const char* part :
       {"<td>20</td>", "<td>2.00</td>", "<td>2:05</td>", "<td>300</td>", "<td>7</td>",
        "<td>14.880</td>", "<td>12.50</td>", "<td>15.643</td>", "<td>22.198</td>"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(count(page, "letter frequencies</td>"), 1);  // both runs share it
  EXPECT_NE(page.find("&lt;exact&gt;"), std::string::npos);
  EXPECT_EQ(page.find("<exact>"), std::string::npos);
  EXPECT_NE(page.find("made &lt;here&gt;"), std::string::npos);
  // What differs stands before the table of all options, what does not only there.
  EXPECT_EQ(count(page, "<code>attention</code>"), 2);
  EXPECT_EQ(count(page, "<code>dim</code>"), 1);
  EXPECT_EQ(count(page, "data:image/png;base64,iVBORw=="), 1);
  EXPECT_EQ(page.find("map.tsv"), std::string::npos);
  EXPECT_EQ(count(page, "query norm</text>"), 4);  // title and axis, of both runs
  EXPECT_NE(page.find("1 lines of metrics.jsonl are damaged"), std::string::npos);
  // Nothing is fetched from elsewhere.
  EXPECT_EQ(page.find("http"), std::string::npos);
  EXPECT_EQ(page.find("src=\"/"), std::string::npos);
}

TEST_F(Report, RunWithoutAnyLineIsAPage) {
  const std::string page = report_page({read_run_record(make_run("a", "{}", ""))}, "");
  EXPECT_NE(page.find("<td>-</td>"), std::string::npos);
  EXPECT_EQ(page.find("<svg"), std::string::npos);
}

TEST(Base64, FollowsTheStandardsExamples) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foob"), "Zm9vYg==");
  EXPECT_EQ(base64("\xff\xfe\xfd"), "//79");
}

TEST(Chart, MarksAreRoundAndWithin) {
  EXPECT_EQ(axis_marks(0, 10, 6), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(axis_marks(-1.1, 1.1, 6), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  for (const double size : {1e-9, 1e-3, 0.7, 3.0, 999.0, 1e12}) {
    for (const double low : {0.0, -0.3 * size, 5 * size}) {
      for (int most = 1; most <= 9; ++most) {
        const std::vector<double> marks = axis_marks(low, low + size, most);
        ASSERT_FALSE(marks.empty());
        EXPECT_LE(marks.size(), size_t(most) + 1) << low << " " << size;
        EXPECT_GE(marks.front(), low - 1e-6 * size);
        EXPECT_LE(marks.back(), low + size + 1e-6 * size);
      }
    }
  }
}

TEST(Chart, LeavesOutWhatIsNotFinite) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  Chart chart{"t", "x", "y", false, {{"a<b", 0, false, false, {{0, 1}, {1, kNan}, {2, 3}}}}};
  const std::string svg = to_svg(chart);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(count(svg, "<circle"), 2);
  EXPECT_NE(svg.find("<title>a&lt;b</title>"), std::string::npos);
  chart.series[0].points = {{0, kNan}};
  EXPECT_FALSE(chart.has_points());
  EXPECT_EQ(count(to_svg(chart), "<path"), 0);
}

TEST(Chart, LevelLineAndSinglePointStayWithinThePicture) {
  for (const std::vector<Point>& points :
       {std::vector<Point>{{5, 7}}, std::vector<Point>{{0, 0}, {1, 0}}}) {
    const std::string svg = to_svg({"t", "x", "y", false, {{"s", 0, false, false, points}}});
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(count(svg, "<circle"), int64_t(points.size()));
  }
}

TEST(Chart, LongSeriesAreDrawnThroughMeans) {
  Series series{"s", 0, false, false, {}};
  for (int i = 0; i < 6000; ++i) series.points.push_back({double(i), i % 2 == 0 ? 1.0 : 3.0});
  const std::string svg = to_svg({"t", "x", "y", false, {series}});
  EXPECT_EQ(count(svg.substr(svg.find("<path d=")), "L"), 599);
}

}  // namespace
}  // namespace performer
