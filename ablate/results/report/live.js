// Keeps a page of `ablate ui` up to date: its line of state, and its contents once the server has newer ones.
(function () {
  "use strict";
  const SECONDS = 2;
  const live = () => document.querySelector(".live");

  async function answerOf(url) {
    const answer = await fetch(url, { cache: "no-cache" });
    if (!answer.ok && answer.status !== 400) throw new Error((await answer.text()).trim());
    return answer;
  }

  const all = (selector) => [...document.querySelectorAll(selector)];

  async function replace(address, places) {
    const text = await (await answerOf(address)).text();
    const next = new DOMParser().parseFromString(text, "text/html");
    const open = all("main details").map((each) => each.open);
    const seen = all("main section[id], main h3").find((e) => e.getBoundingClientRect().bottom > 0);
    const index = seen ? all(seen.tagName).indexOf(seen) : -1;
    const top = seen?.getBoundingClientRect().top;
    const reached = all("main :is(a, input, button, summary, .scroll)").indexOf(document.activeElement);
    const ticked = all("main :checked").map((each) => each.value);
    const aside = all("main .scroll").map((each) => each.scrollLeft);
    for (const place of places) {
      const [former, newer] = [document.querySelector(place), next.querySelector(place)];
      if (former && newer) former.replaceWith(newer);
      else if (newer) document.body.append(newer);
    }
    all("main details").forEach((each, i, these) => { each.open = open[i - these.length + open.length] ?? each.open; });
    all("main [type=checkbox]").forEach((each) => { each.checked = ticked.includes(each.value); });
    all("main .scroll").forEach((each, i) => { each.scrollLeft = aside[i] ?? 0; });
    all("main :is(a, input, button, summary, .scroll)")[reached]?.focus({ preventScroll: true });
    if (places.includes("main")) document.dispatchEvent(new Event("replaced"));
    const again = index < 0 ? null : all(seen.tagName)[index];
    if (again) scrollBy(0, again.getBoundingClientRect().top - top);
  }

  async function look() {
    const fault = () => live().querySelector(".fault");
    try {
      if (!document.hidden) {
        const state = await (await answerOf(live().dataset.state)).json();
        const busy = !getSelection().isCollapsed || document.activeElement?.matches("[type=search]");
        const { version, now } = live().dataset;
        if (state.version !== version && !busy) {
          if (!version) return location.reload(); // a page without figures has no scripts for them
          await replace(location.pathname + location.search, [".live", "main", "#specs", "#palettes"]);
        } else if (now !== undefined && state.now !== now && !busy) {
          await replace("now", ["#now"]);
          live().dataset.now = state.now;
        }
        live().querySelectorAll("span:not(.fault)").forEach((each, i) => { each.textContent = state.lines[i] ?? ""; });
        fault().hidden = true;
      }
    } catch (error) {
      fault().textContent = "Not up to date: " + error.message;
      fault().hidden = false;
    }
    setTimeout(look, 1000 * SECONDS);
  }

  setTimeout(look, 1000 * SECONDS);
})();
