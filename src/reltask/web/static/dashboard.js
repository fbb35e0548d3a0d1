// The live parts, the keys and the clocks. Every page works without this file; nothing here decides anything.
(function () {
  "use strict";
  const $ = (selector, within) => (within || document).querySelector(selector);
  const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));
  const store = {
    get(name) { try { return localStorage.getItem("reltask." + name); } catch (error) { return null; } },
    set(name, value) { try { localStorage.setItem("reltask." + name, value); } catch (error) { /* not kept */ } },
  };

  // Clocks: UTC as the database says, or this browser's own zone.
  function showTimes(within) {
    const local = store.get("zone") === "local";
    for (const time of all("time[data-time]", within)) {
      const date = new Date(time.dateTime);
      if (isNaN(date)) continue;
      const shifted = local ? new Date(date.getTime() - date.getTimezoneOffset() * 60000) : date;
      const text = shifted.toISOString().replace("T", " ");
      time.textContent = { minute: text.slice(5, 16), second: text.slice(5, 19) }[time.dataset.time] || text.slice(0, 19);
    }
    for (const time of all("time[title]", within)) {
      const date = new Date(time.dateTime);
      if (isNaN(date)) continue;
      const shifted = local ? new Date(date.getTime() - date.getTimezoneOffset() * 60000) : date;
      time.title = shifted.toISOString().slice(0, 19).replace("T", " ") + (local ? " local time" : " UTC");
    }
    for (const name of all(".zone-name")) name.textContent = local ? "local" : "UTC";
    const button = $("#zone");
    button.textContent = local ? "Local time" : "UTC";
    button.setAttribute("aria-label", local ? "Times are local; switch to UTC" : "Times are UTC; switch to local");
  }
  const zone = $("#zone");
  zone.hidden = false;
  zone.addEventListener("click", () => { store.set("zone", store.get("zone") === "local" ? "utc" : "local"); showTimes(); drawChart(); });

  // Light and dark.
  const theme = $("#theme");
  theme.hidden = false;
  const dark = () => document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  function nameTheme() { theme.textContent = dark() ? "Light" : "Dark"; theme.setAttribute("aria-label", "Switch to the " + (dark() ? "light" : "dark") + " theme"); }
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    store.set("theme", document.documentElement.dataset.theme);
    nameTheme();
    drawChart();
  });

  // The chart of the last hour.
  let chart = null;
  const two = (number) => String(number).padStart(2, "0");
  function minute(seconds) {
    const date = new Date(seconds * 1000);
    return store.get("zone") === "local" ? two(date.getHours()) + ":" + two(date.getMinutes()) : two(date.getUTCHours()) + ":" + two(date.getUTCMinutes());
  }
  let data = null;
  function drawChart() {
    const place = $("#chart");
    if (!place || !window.uPlot) return;
    data = data || JSON.parse(place.dataset.chart);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    if (chart) chart.destroy();
    place.replaceChildren();
    const now = Math.floor(Date.now() / 60000) * 60;
    const end = data[0].length ? Math.max(now, data[0][data[0].length - 1]) : now;
    const shown = (u, runs, series) => runs === null ? u.data[series].reduce((sum, one) => sum + one, 0) : runs;
    const bars = uPlot.paths.bars({ size: [0.8, 12] });
    chart = new uPlot({
      width: place.clientWidth, height: 160, cursor: { y: false }, legend: { live: true },
      scales: { x: { min: end - 3600, max: end + 60 }, y: { range: (u, low, high) => [0, Math.max(4, high)] } },
      axes: [
        { stroke: colour("--dim"), grid: { show: false }, ticks: { stroke: colour("--line") }, values: (u, times) => times.map(minute) },
        { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, size: 42 },
      ],
      tzDate: (seconds) => store.get("zone") === "local" ? new Date(seconds * 1000) : uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      series: [{ label: "time", value: (u, seconds) => seconds === null ? "the last hour" : minute(seconds) },
        { label: "succeeded", value: shown, fill: colour("--good"), stroke: colour("--good"), paths: bars, points: { show: false } },
        { label: "failed", value: shown, fill: colour("--bad"), stroke: colour("--bad"), paths: bars, points: { show: false } }],
    }, data, place);
  }
  addEventListener("resize", () => { if (chart) chart.setSize({ width: $("#chart").clientWidth, height: 160 }); });

  // Live: parts are replaced in place, never under the pointer or the focus.
  const held = new Map();
  const busy = (place) => place.matches(":hover") && place.querySelector("table, li") || place.contains(document.activeElement);
  function replace(place, html) {
    if (place.innerHTML.trim() === html.trim()) return;
    const parsed = new DOMParser().parseFromString(html, "text/html");
    place.replaceChildren(...parsed.body.childNodes);
    showTimes(place);
  }
  function receive(name, html) {
    const place = $('[data-live="' + name + '"]');
    if (!place) return;
    if (busy(place)) { held.set(name, html); return; }
    held.delete(name);
    replace(place, html);
  }
  document.addEventListener("pointerout", () => setTimeout(release, 50));
  document.addEventListener("focusout", () => setTimeout(release, 50));
  function release() {
    for (const [name, html] of held) {
      const place = $('[data-live="' + name + '"]');
      if (place && !busy(place)) { held.delete(name); replace(place, html); }
    }
  }
  const live = $("#live");
  const say = (text, on) => { if (live.textContent !== text) live.textContent = text; live.className = on === undefined ? "live" : "live " + (on ? "on" : "off"); };
  let first = null;  // the counts that the page was loaded with
  let source = null;
  function listen() {
    if (source || document.hidden || document.body.dataset.streams !== "yes") return;
    if (!$("[data-live], .tabs")) { say(matchMedia("(max-width: 720px), (hover: none)").matches ? "not live" : "not live: press r to renew"); return; }
    source = new EventSource("live");
    source.onopen = () => say("live", true);
    source.onerror = () => { if (source && source.readyState === 2) source = null; say("connecting again…", false); };
    for (const name of ["problems", "numbers", "queues", "fleet"]) source.addEventListener(name, (event) => { say("live", true); receive(name, JSON.parse(event.data)); });
    source.addEventListener("chart", (event) => { const next = JSON.parse(JSON.parse(event.data)); if (chart && JSON.stringify(next) !== JSON.stringify(data)) { data = next; chart.setData(data); } });
    source.addEventListener("counts", (event) => counted(JSON.parse(JSON.parse(event.data))));
    source.addEventListener("again", () => { source.close(); source = null; listen(); });
    source.addEventListener("outage", (event) => say(JSON.parse(event.data), false));
  }
  const total = (parts) => [parts.reduce((sum, part) => sum + part[0], 0), parts.some((part) => part[1])];
  const write = ([number, more]) => (more ? "> " : "") + String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  // The counts of the list that is shown: of its task and queue, or of all. Undefined: there are too many lanes.
  function shownCounts(counts, tabs) {
    const { task, queue } = tabs.dataset;
    if (!task && !queue) return counts.all;
    if (!counts.lanes.length && Object.values(counts.all).some((count) => count[0])) return undefined;
    const lanes = counts.lanes.filter((lane) => (!queue || lane[0] === queue) && (!task || lane[1] === task));
    return Object.fromEntries(Object.keys(counts.all).map((state) => [state, total(lanes.map((lane) => lane[2][state]))]));
  }
  function counted(counts) {
    if ($("[data-waits]") && (counts.workers || Object.values(counts.all).some((count) => count[0]))) { location.reload(); return; }
    const tabs = $(".tabs");
    const shown = tabs && shownCounts(counts, tabs);
    if (!shown) return;
    first = first || Object.fromEntries(all("[data-count]", tabs).map((badge) => [badge.dataset.count, Number(badge.textContent.replace(/\D/g, ""))]));
    for (const badge of all("[data-count]", tabs)) badge.textContent = write(shown[badge.dataset.count]);
    const fresh = $("#fresh");
    const current = $("[aria-current] [data-count]", tabs);
    if (!fresh || !current) return;
    const state = current.dataset.count;
    const more = shown[state][0] - first[state];
    fresh.hidden = more === 0;
    $("button", fresh).textContent = (more > 0 ? more + " new" : -more + " fewer") + " — show the list again";
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && source) { source.close(); source = null; } else { listen(); }
  });

  // What an action did is said once: not again when the page is loaded again.
  const address = new URL(location.href);
  for (const name of ["did", "changed", "asked"]) address.searchParams.delete(name);
  if (address.href !== location.href) history.replaceState(history.state, "", address);

  // Rows: keys, choosing, copying.
  const rows = () => all(".rows tbody tr[data-href]");
  let at = -1;
  function go(step) {
    const found = rows();
    if (!found.length) return;
    at = Math.max(0, Math.min(found.length - 1, at + step));
    for (const row of found) row.classList.remove("at");
    found[at].classList.add("at");
    const link = $("a", found[at]);
    if (link) link.focus({ preventScroll: true });
    found[at].scrollIntoView({ block: "nearest" });
  }
  function choose() {
    const box = rows()[at] && $('input[type="checkbox"]', rows()[at]);
    if (box) { box.checked = !box.checked; box.dispatchEvent(new Event("change", { bubbles: true })); }
  }
  document.addEventListener("change", showChosen);
  function showChosen() {
    const chosen = all('.rows input[type="checkbox"]:checked').length;
    for (const button of all(".of-chosen")) button.disabled = chosen === 0;
    const text = $("#chosen-count");
    if (text && chosen) text.textContent = chosen === 1 ? "1 job chosen" : chosen + " jobs chosen";
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input:not([type=checkbox]), select, textarea")) { if (event.key === "Escape") event.target.blur(); return; }
    switch (event.key) {
      case "/": event.preventDefault(); if ($("#search")) $("#search").focus(); else location.href = new URL("jobs", document.baseURI); break;
      case "j": go(1); break;
      case "k": go(-1); break;
      case "x": choose(); break;
      case "r": location.reload(); break;
      case "?": $("#keys").showModal(); break;
    }
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-reload]")) location.reload();
    const copy = event.target.closest("[data-copy]");
    if (copy) navigator.clipboard.writeText(copy.dataset.copy).then(() => { copy.textContent = "Copied"; });
    const open = event.target.closest("details.menu");
    for (const menu of all("details.menu[open]")) if (menu !== open) menu.open = false;
  });
  if (navigator.clipboard) for (const button of all("[data-copy]")) button.hidden = false;
  document.addEventListener("htmx:afterSwap", () => { at = -1; first = null; showTimes(); showChosen(); });

  const here = $(".side a[aria-current]");
  if (here) here.parentNode.scrollLeft = here.offsetLeft - here.parentNode.offsetLeft - 40;  // on a narrow screen the menu scrolls

  nameTheme();
  showTimes();
  showChosen();
  drawChart();
  listen();
})();
