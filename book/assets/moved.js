// Statements and exercises that moved to another page: their old addresses lead to the new ones.
"use strict";
{
  const MOVED = {
    dfedgam: ["gossip", "alg-gossip thm-consensus thm-gap-learning thm-corrected-rest ex-dfl-neighbours ex-dfl-predict ex-dfl-limit"],
    report: ["difference", "alg-verdict thm-rule ex-report-predict ex-report-interval ex-report-holm ex-report-images"],
  };
  const [page, labels] = MOVED[location.pathname.split("/").pop().replace(".html", "")] ?? ["", ""];
  const label = location.hash.slice(1);
  if (label && labels.split(" ").includes(label)) location.replace(`${page}.html#${label}`);
}
