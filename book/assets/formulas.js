// On a narrow screen a long formula is set smaller, down to seven tenths, before it gets a bar.
"use strict";
{
  const LEAST = 0.7;
  const fit = () => {
    for (const formula of document.querySelectorAll(".bd-article mjx-container[display]")) {
      formula.style.setProperty("--fit", 1);
      const drawn = [...formula.querySelectorAll("mjx-math, mjx-mtable")].map((e) => e.getBoundingClientRect().width);
      const part = formula.clientWidth / Math.max(...drawn);
      if (part < 1) formula.style.setProperty("--fit", Math.max(LEAST, part - 0.01));
    }
  };
  let waiting;
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(fit, 100);
  };
  addEventListener("load", () => window.MathJax?.startup?.promise.then(fit));
  addEventListener("resize", soon);
  addEventListener("toggle", soon, true); // what a fold holds has no width before
}
